"""One typed function for each TensorFlow op, with its gradient and its XLA counterpart.

All tensors of a call have one dtype. The ops run on the CPU.
"""

import contextlib

from smddp_tf import _native, _runtime, _xla

tf = _native.tensorflow()
_ops = _native.ops()

# Horovod's numbers.
Average, Sum, Adasum, Min, Max, Product = range(6)
OP_NAMES = {0: "Average", 1: "Sum", 2: "Adasum", 3: "Min", 4: "Max", 5: "Product"}

_LAST_COLLECTIVE = "smddp_tf_last_collective"


@contextlib.contextmanager
def _placed():
    """On the CPU and, in a TF1 graph, after the graph's last collective.

    Functions keep stateful ops in program order by themselves; a plain graph does not, and ranks
    that run collectives in different orders would not fit together.
    """
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    chain = graph is not None and not isinstance(graph, tf.__internal__.FuncGraph)
    last = graph.get_collection_ref(_LAST_COLLECTIVE) if chain else []
    created: list = []
    with tf.device("/cpu:0"), tf.control_dependencies(list(last) if chain else None or []):
        yield created
    if chain and created:
        last[:] = [created[-1].op if isinstance(created[-1], tf.Tensor) else created[-1]]


def allreduce(tensors: list, op: int, prescale: float, postscale: float, name: str) -> list:
    """Reduces a list of tensors of one dtype over all ranks, each with its peers' counterpart."""
    if not _xla.inside_jit():
        with _placed() as created:
            outputs = _ops.smddp_allreduce(
                tensors=tensors,
                reduce_op=int(op),
                prescale=prescale,
                postscale=postscale,
                tensor_name=name,
            )
            created.extend(outputs)
        return outputs

    @tf.custom_gradient
    def call(*inputs):
        scales = {"prescale": prescale, "postscale": postscale}
        results = _xla.call("allreduce", list(inputs), op=op, name=name, **scales)

        def grad(*upstream):
            return _allreduce_gradient(list(upstream), op, prescale, postscale, name)

        return results, grad

    return list(call(*tensors))


def _allreduce_gradient(upstream, op, prescale, postscale, name) -> list:
    if op not in (Average, Sum):
        raise LookupError(
            f"allreduce with op={OP_NAMES[op]} has no gradient; only Sum and Average have one"
        )
    return allreduce(upstream, op, prescale, postscale, name + ".grad")


@tf.RegisterGradient("SmddpAllreduce")
def _(node, *upstream):
    return _allreduce_gradient(
        list(upstream),
        node.get_attr("reduce_op"),
        node.get_attr("prescale"),
        node.get_attr("postscale"),
        node.get_attr("tensor_name").decode(),
    )


def broadcast(tensors: list, root: int, name: str) -> list:
    """Gives every rank the root's tensors."""
    if not _xla.inside_jit():
        with _placed() as created:
            outputs = _ops.smddp_broadcast(tensors=tensors, root_rank=root, tensor_name=name)
            created.extend(outputs)
        return outputs

    @tf.custom_gradient
    def call(*inputs):
        results = _xla.call("broadcast", list(inputs), root=root, name=name)
        return results, lambda *upstream: _broadcast_gradient(list(upstream), root, name)

    return list(call(*tensors))


def _broadcast_gradient(upstream, root, name) -> list:
    """The root's value went everywhere, so all gradients meet there; other inputs went nowhere."""
    summed = allreduce(upstream, Sum, 1.0, 1.0, name + ".grad")
    return summed if _runtime.rank() == root else [tf.zeros_like(grad) for grad in summed]


@tf.RegisterGradient("SmddpBroadcast")
def _(node, *upstream):
    root, name = node.get_attr("root_rank"), node.get_attr("tensor_name").decode()
    return _broadcast_gradient(list(upstream), root, name)


def allgather(tensor, name: str):
    """Joins the ranks' tensors along their first dimension, which may differ by rank."""
    if _xla.inside_jit():
        _xla.refuse("allgather")
    with _placed() as created:
        output = _ops.smddp_allgather(tensor=tensor, tensor_name=name)
        created.append(output)
    if tensor.shape.rank:
        output.set_shape([None, *tensor.shape.as_list()[1:]])
    return output


@tf.RegisterGradient("SmddpAllgather")
def _(node, upstream):
    name = node.get_attr("tensor_name").decode() + ".grad"
    tensor = node.inputs[0]
    rows = tf.shape(tensor, out_type=tf.int64)[0] if tensor.shape.rank != 0 else 1
    all_rows = allgather(tf.reshape(tf.cast(rows, tf.int64), [1]), name + ".rows")
    summed = allreduce([upstream], Sum, 1.0, 1.0, name)[0]
    begin = tf.reduce_sum(all_rows[: _runtime.rank()])
    own = summed[begin : begin + tf.cast(rows, tf.int64)]
    return tf.reshape(own, tf.shape(tensor))


def barrier(name: str):
    """Returns when every rank has come here."""
    if _xla.inside_jit():
        _xla.refuse("barrier")
    with _placed() as created:
        done = _ops.smddp_barrier(tensor_name=name)
        if done is not None:
            created.append(done)
    return done


def plan_begin(plan, name: str):
    """Opens a run of a plan; returns its number, which every bucket takes."""
    _native.check_async_ops()
    with _placed() as created:
        run = _ops.smddp_plan_begin(
            plan_name=name,
            fingerprint=plan.fingerprint,
            description=plan.description,
            num_buckets=len(plan.buckets),
        )
        created.append(run)
    return run


def plan_bucket(run, tensors, earlier, bucket: int, op, prescale, postscale, name: str):
    """Reduces one bucket as soon as its tensors and those of all earlier buckets exist.

    `earlier` is [] for the first bucket, then what this function returned for the one before.
    Returns (outputs, a token for plan_end, `earlier` for the next bucket).

    The engine would put buckets into order in any case, but one that is there too early can wait
    for ever: TensorFlow does not end a step that failed, nor tell why it did, while an operation of
    it is under way, and the bucket that is missing may be what failed.
    """
    with tf.device("/cpu:0"), tf.control_dependencies(earlier):
        outputs, token = _ops.smddp_plan_bucket(
            run=run,
            tensors=tensors,
            bucket=bucket,
            reduce_op=int(op),
            prescale=prescale,
            postscale=postscale,
            tensor_name=f"{name}.{bucket}",
        )
        with tf.control_dependencies([run, *tensors]):
            return outputs, token, [tf.no_op()]


@tf.RegisterGradient("SmddpPlanBucket")
def _(node, *upstream):
    grads = _allreduce_gradient(
        list(upstream[:-1]),
        node.get_attr("reduce_op"),
        node.get_attr("prescale"),
        node.get_attr("postscale"),
        node.get_attr("tensor_name").decode(),
    )
    return [None, *grads]


def plan_end(run, tokens: list) -> None:
    """Closes the run. Takes the tokens as data: else TensorFlow would prune unused buckets."""
    with _placed() as created:
        done = _ops.smddp_plan_end(run=run, tokens=tokens)
        if done is not None:
            created.append(done)


for _op in ("SmddpBarrier", "SmddpPlanBegin", "SmddpPlanEnd"):
    tf.no_gradient(_op)
