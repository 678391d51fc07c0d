"""Emits the three ops of a gradient plan; ops/engine/bucket_scheduler.h defines their semantics."""

from smddp_tf._src.graph import library
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.graph.ops.emit import emit, factor_attribute
from smddp_tf._src.graph.ops.gradients import of_allreduce, reduction_of
from smddp_tf._src.job.process_sets import ProcessGroup
from smddp_tf._src.job.reduction import Reduction

tf = tensorflow()


def plan_begin(plan, name: str, group: ProcessGroup):
    """Opens a run of a plan; returns the run number, which every bucket takes as an input."""
    return emit(
        "plan_begin",
        plan_name=name,
        fingerprint=plan.fingerprint,
        description=plan.description,
        num_buckets=len(plan.buckets),
        process_set=group.id,
    )


def plan_bucket(run, tensors, earlier, bucket: int, reduction: Reduction):
    """Reduces one bucket as soon as its tensors and those of all earlier buckets exist.

    `earlier` holds control inputs: [] for the first bucket, then what the previous call returned.
    Returns (outputs, a token for plan_end, `earlier` for the next bucket).

    The engine keeps buckets in order anyway, but a bucket that starts before its predecessors could
    wait forever: if a predecessor's gradient fails, TensorFlow neither ends the step nor reports
    the error while this bucket is pending.
    """
    with library.where_tensors_are(), tf.control_dependencies(earlier):
        outputs, token = library.ops().smddp_plan_bucket(
            run=run,
            tensors=tensors,
            bucket=bucket,
            reduce_op=int(reduction.op),
            prescale=factor_attribute(reduction.prescale),
            postscale=factor_attribute(reduction.postscale),
            tensor_name=f"{reduction.name}.{bucket}",
            process_set=reduction.group.id,
        )
        # Run blocking buckets one at a time: together they could occupy all TensorFlow threads.
        if library.ops_block():
            return outputs, token, [token]
        with tf.control_dependencies([run, *tensors]):
            return outputs, token, [tf.no_op()]


@tf.RegisterGradient("SmddpPlanBucket")
def _(node, *upstream):
    return [None, *of_allreduce(list(upstream[:-1]), reduction_of(node))]


def plan_end(run, tokens: list, group: ProcessGroup) -> None:
    """Closes the run. Takes the tokens as inputs, so that TensorFlow does not prune buckets."""
    emit("plan_end", run=run, tokens=tokens, process_set=group.id)


for _op in ("SmddpPlanBegin", "SmddpPlanEnd"):
    tf.no_gradient(_op)
