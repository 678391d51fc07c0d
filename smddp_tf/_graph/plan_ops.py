"""The three ops of a gradient plan; ops/engine/plan_runs.h says what they mean."""

from smddp_tf._graph import library, ops
from smddp_tf._graph.framework import tensorflow

tf = tensorflow()


def plan_begin(plan, name: str, process_set: int = 0):
    """Opens a run of a plan; returns its number, which every bucket takes."""
    return ops.emit(
        "plan_begin",
        plan_name=name,
        fingerprint=plan.fingerprint,
        description=plan.description,
        num_buckets=len(plan.buckets),
        process_set=process_set,
    )


def plan_bucket(
    run,
    tensors,
    earlier,
    bucket: int,
    op: int,
    prescale: float,
    postscale: float,
    name: str,
    process_set: int = 0,
):
    """Reduces one bucket as soon as its tensors and those of all earlier buckets exist.

    `earlier` is [] for the first bucket, then what this function returned for the one before.
    Returns (outputs, a token for plan_end, `earlier` for the next bucket).

    The engine would put buckets into order in any case, but one that is there too early can wait
    for ever: TensorFlow does not end a step that failed, nor tell why it did, while an operation of
    it is under way, and the bucket that is missing may be what failed.
    """
    with tf.device("/cpu:0"), tf.control_dependencies(earlier):
        outputs, token = library.ops().smddp_plan_bucket(
            run=run,
            tensors=tensors,
            bucket=bucket,
            reduce_op=int(op),
            prescale=prescale,
            postscale=postscale,
            tensor_name=f"{name}.{bucket}",
            process_set=process_set,
        )
        if library.ops_block():  # one at a time, or they would hold the threads that one needs
            return outputs, token, [token]
        with tf.control_dependencies([run, *tensors]):
            return outputs, token, [tf.no_op()]


@tf.RegisterGradient("SmddpPlanBucket")
def _(node, *upstream):
    grads = ops.allreduce_gradient(
        list(upstream[:-1]),
        node.get_attr("reduce_op"),
        node.get_attr("prescale"),
        node.get_attr("postscale"),
        node.get_attr("tensor_name").decode(),
        node.get_attr("process_set"),
    )
    return [None, *grads]


def plan_end(run, tokens: list, process_set: int = 0) -> None:
    """Closes the run. Takes the tokens as data: else TensorFlow would prune unused buckets."""
    ops.emit("plan_end", run=run, tokens=tokens, process_set=process_set)


for _op in ("SmddpPlanBegin", "SmddpPlanEnd"):
    tf.no_gradient(_op)
