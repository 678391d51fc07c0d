"""One typed function for each TensorFlow op, with its gradient and its XLA counterpart.

All tensors of a call have one dtype. The ops run on the CPU. `root` is always a rank of the job.
order.py keeps the ops in program order.
"""

from smddp_tf._graph import library, order, xla
from smddp_tf._graph.framework import tensorflow
from smddp_tf._job import basics
from smddp_tf._job.enums import Matching
from smddp_tf._job.process_sets import Group, group_of
from smddp_tf._job.reduce_op import Average, ReduceOp, Sum

tf = tensorflow()
_ops = library.ops()


def emit(kind: str, **arguments):
    """Emits an op on the CPU that keeps program order. Returns its outputs."""
    library.check_async_ops()
    order.keep()
    with tf.device("/cpu:0"):
        return getattr(_ops, f"smddp_{kind}")(**arguments)


def emit_matched(kind: str, group: Group, **arguments):
    """Emits an op that is matched by name where there is no program order. Returns its outputs."""
    matching = order.matching()
    if matching == Matching.BY_NAME:
        arguments["tensor_name"] = order.unique_name(arguments["tensor_name"])
    return emit(kind, process_set=group.id, matching=int(matching), **arguments)


def _reduction(
    kind: str, tensors: list, gradient, result_shapes=None, description="", **arguments
) -> list:
    """Emits a reduction of tensors of one dtype: the op, or its custom call inside jit.

    gradient(upstream, **arguments) computes the inputs' gradients inside jit; the op has its
    registered gradient. description has a line per tensor, for messages.
    """
    scales = ("prescale", "postscale")
    if not xla.inside_jit():
        return emit_matched(
            kind,
            arguments["group"],
            tensors=tensors,
            reduce_op=int(arguments["op"]),
            tensor_name=arguments["name"],
            **{scale: arguments[scale] for scale in scales},
            **({"description": description} if description else {}),
        )

    @tf.custom_gradient
    def call(*inputs):
        results = xla.call(kind, list(inputs), result_shapes=result_shapes, **arguments)
        return results, lambda *upstream: gradient(list(upstream), **arguments)

    return list(call(*tensors))


def allreduce(
    tensors: list,
    op: int,
    prescale: float,
    postscale: float,
    name: str,
    group: Group,
    description: str = "",
) -> list:
    """Reduces each of a list of tensors of one dtype over the ranks of the set."""
    return _reduction(
        "allreduce",
        tensors,
        allreduce_gradient,
        description=description,
        op=op,
        prescale=prescale,
        postscale=postscale,
        name=name,
        group=group,
    )


def allreduce_gradient(upstream, op, prescale, postscale, name, group) -> list:
    if op not in (Average, Sum):
        raise LookupError(
            f"allreduce with op={ReduceOp(op)} has no gradient; only Sum and Average have one"
        )
    return allreduce(upstream, op, prescale, postscale, name + ".grad", group)


@tf.RegisterGradient("SmddpAllreduce")
def _(node, *upstream):
    return allreduce_gradient(
        list(upstream),
        node.get_attr("reduce_op"),
        node.get_attr("prescale"),
        node.get_attr("postscale"),
        node.get_attr("tensor_name").decode(),
        group_of(node.get_attr("process_set")),
    )


def broadcast(tensors: list, root: int, name: str, group: Group) -> list:
    """Copies the root's tensors to every rank of the set."""
    if not xla.inside_jit():
        return emit_matched("broadcast", group, tensors=tensors, root_rank=root, tensor_name=name)

    @tf.custom_gradient
    def call(*inputs):
        results = xla.call("broadcast", list(inputs), root=root, name=name, group=group)

        def grad(*upstream):
            return _broadcast_gradient(list(upstream), root, name, group)

        return results, grad

    return list(call(*tensors))


def _broadcast_gradient(upstream, root, name, group) -> list:
    """The average of all ranks' gradients at the root and zeros elsewhere, as in Horovod."""
    averaged = allreduce(upstream, Average, 1.0, 1.0, name + ".grad", group)
    return averaged if basics.rank() == root else [tf.zeros_like(grad) for grad in averaged]


@tf.RegisterGradient("SmddpBroadcast")
def _(node, *upstream):
    root, name = node.get_attr("root_rank"), node.get_attr("tensor_name").decode()
    return _broadcast_gradient(list(upstream), root, name, group_of(node.get_attr("process_set")))


def allgather(tensor, name: str, group: Group):
    """Concatenates the ranks' tensors along the first dimension, which may differ between ranks."""
    if xla.inside_jit():
        return _allgather_in_jit(tensor, name, group)
    output = emit_matched("allgather", group, tensor=tensor, tensor_name=name)
    if tensor.shape.rank:
        output.set_shape([None, *tensor.shape.as_list()[1:]])
    return output


def _allgather_in_jit(tensor, name: str, group: Group):
    """XLA needs a static result shape, so all ranks' tensors must have the same shape."""
    tensor = tf.reshape(tensor, [1]) if tensor.shape.rank == 0 else tensor
    shape = tensor.shape.as_list()
    ranks = group.size

    @tf.custom_gradient
    def call(one):
        # Ranks compare names, so put the shape into it.
        results = xla.call(
            "allgather",
            [one],
            name=f"{name} {shape}",
            group=group,
            result_shapes=[[ranks * shape[0], *shape[1:]] if None not in shape else shape],
        )

        def grad(upstream):
            return reducescatter([upstream], Average, 1.0, 1.0, name + ".grad", group)[0]

        return results[0], grad

    return call(tensor)


@tf.RegisterGradient("SmddpAllgather")
def _(node, upstream):
    # As in Horovod: this rank's rows of the average of all ranks' gradients.
    name = node.get_attr("tensor_name").decode() + ".grad"
    group = group_of(node.get_attr("process_set"))
    tensor = node.inputs[0]
    rows = tf.shape(tensor, out_type=tf.int64)[0] if tensor.shape.rank != 0 else 1
    all_rows = allgather(tf.reshape(tf.cast(rows, tf.int64), [1]), name + ".rows", group)

    averaged = allreduce([upstream], Average, 1.0, 1.0, name, group)[0]
    begin = tf.reduce_sum(all_rows[: group.rank])
    own = averaged[begin : begin + tf.cast(rows, tf.int64)]
    return tf.reshape(own, tf.shape(tensor))


def alltoall(tensor, splits, name: str, group: Group):
    """Exchanges rows with all ranks; empty splits mean even ones. Returns (rows, their counts)."""
    if xla.inside_jit():
        return _alltoall_in_jit(tensor, splits, name, group)
    output, received = emit_matched(
        "alltoall", group, tensor=tensor, splits=splits, tensor_name=name
    )
    if tensor.shape.rank:
        output.set_shape([None, *tensor.shape.as_list()[1:]])
    received.set_shape([group.size])
    return output, received


def _alltoall_in_jit(tensor, splits, name: str, group: Group):
    shape, ranks = tensor.shape.as_list(), group.size
    if splits.shape.num_elements() != 0:
        xla.refuse("alltoall with splits")
    if shape[0] is not None and shape[0] % ranks:
        raise ValueError(f"alltoall: {shape[0]} rows are not divided by {ranks} ranks")

    @tf.custom_gradient
    def call(one):
        results = xla.call("alltoall", [one], name=f"{name} {shape}", group=group)
        return results[0], lambda upstream: _alltoall_in_jit(
            upstream, splits, name + ".grad", group
        )[0]

    return call(tensor), tf.fill([ranks], (shape[0] or 0) // ranks)


@tf.RegisterGradient("SmddpAlltoall")
def _(node, upstream, _):
    # The gradients of received rows go back to their senders.
    name, group = node.get_attr("tensor_name").decode(), group_of(node.get_attr("process_set"))
    return alltoall(upstream, node.outputs[1], name + ".grad", group)[0], None


def reducescatter(
    tensors: list, op: int, prescale: float, postscale: float, name: str, group: Group
) -> list:
    """Reduces tensors of one dtype; each rank receives its part of every tensor's rows."""
    own = [[_own_rows(t.shape[0], group), *t.shape.as_list()[1:]] for t in tensors]
    outputs = _reduction(
        "reducescatter",
        tensors,
        _reducescatter_gradient,
        result_shapes=own,
        op=op,
        prescale=prescale,
        postscale=postscale,
        name=name,
        group=group,
    )
    for output, shape in zip(outputs, own, strict=True):
        output.set_shape(shape)
    return outputs


def _own_rows(rows, group: Group):
    """This rank's number of rows, same as in reduce_scatter.cc; None if unknown."""
    if rows is None:
        return None
    each, odd = divmod(rows, group.size)
    return each + (1 if group.rank < odd else 0)


def _reducescatter_gradient(upstream, op, prescale, postscale, name, group) -> list:
    """Gathers each row's gradient from the rank that received the row, and scales it.

    As in Horovod, the gradient of a sum is multiplied by the number of ranks, and the gradient of
    an average is not divided by it.
    """
    if op not in (Average, Sum):
        raise LookupError(
            f"reducescatter with op={ReduceOp(op)} has no gradient; only Sum and Average have one"
        )
    scale = prescale * postscale
    if op == Sum:
        scale *= group.size
    grads = []
    for i, grad in enumerate(upstream):
        scaled = grad if scale == 1.0 else grad * tf.cast(scale, grad.dtype)
        grads.append(allgather(scaled, f"{name}.grad.{i}", group))
    return grads


@tf.RegisterGradient("SmddpReducescatter")
def _(node, *upstream):
    return _reducescatter_gradient(
        upstream,
        node.get_attr("reduce_op"),
        node.get_attr("prescale"),
        node.get_attr("postscale"),
        node.get_attr("tensor_name").decode(),
        group_of(node.get_attr("process_set")),
    )


def barrier(name: str, group: Group):
    """Blocks until every rank of the set has arrived."""
    if xla.inside_jit():
        xla.refuse("barrier")
    return emit_matched("barrier", group, tensor_name=name)


def join():
    """Takes part in the others' collectives until all ranks have joined; returns the last one."""
    if xla.inside_jit():
        xla.refuse("join")
    last = emit("join", tensor_name="join")
    last.set_shape([])
    return last


for _op in ("SmddpBarrier", "SmddpJoin"):
    tf.no_gradient(_op)
