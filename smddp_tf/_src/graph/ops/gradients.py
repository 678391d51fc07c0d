"""The gradients of the ops and, inside jit, of their custom calls.

They are in a file of their own because an op's gradient is made of other ops: allgather's of
reducescatter, and the reverse.
"""

import dataclasses

from smddp_tf._src.graph import xla
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.graph.ops.allgather import allgather
from smddp_tf._src.graph.ops.allreduce import allreduce
from smddp_tf._src.graph.ops.alltoall import alltoall, alltoall_in_jit
from smddp_tf._src.graph.ops.emit import jit_gradients
from smddp_tf._src.graph.ops.ranks import is_fixed, rank_in, size_in
from smddp_tf._src.graph.ops.reducescatter import reducescatter
from smddp_tf._src.job import basics
from smddp_tf._src.job.process_sets import ProcessGroup, group_of
from smddp_tf._src.job.reduce_op import Average, ReduceOp, Sum
from smddp_tf._src.job.reduction import Reduction

tf = tensorflow()


def _gradient_of(kind: str):
    """Registers a function as the gradient of both forms of a kind of collective."""

    def register(gradient):
        def of_unordered(node, *upstream):
            grads = gradient(node, *upstream)
            return [*(grads if isinstance(grads, (list, tuple)) else [grads]), None]

        tf.RegisterGradient(f"Smddp{kind}")(gradient)
        tf.RegisterGradient(f"SmddpUnordered{kind}")(of_unordered)
        return gradient

    return register


def _common(node) -> dict:
    """The attributes that all ops have."""
    return {
        "name": node.get_attr("tensor_name").decode(),
        "group": group_of(node.get_attr("process_set")),
    }


def reduction_of(node) -> Reduction:
    """What a node of a reduction does."""
    return Reduction(
        op=ReduceOp(node.get_attr("reduce_op")),
        prescale=float(node.get_attr("prescale")),
        postscale=float(node.get_attr("postscale")),
        **_common(node),
    )


def _average(name: str, group: ProcessGroup) -> Reduction:
    return Reduction(Average, name, group)


def _of_gradient(reduction: Reduction) -> Reduction:
    """The same reduction for gradients; the op itself has compared the rest."""
    return dataclasses.replace(reduction, name=reduction.name + ".grad", compared="")


def _check_differentiable(kind: str, op: ReduceOp) -> None:
    if op not in (Average, Sum):
        raise LookupError(f"{kind} with op={op} has no gradient; only Sum and Average have one")


def of_allreduce(upstream: list, reduction: Reduction) -> list:
    """The same reduction of the gradients."""
    _check_differentiable("allreduce", reduction.op)
    return allreduce(upstream, _of_gradient(reduction))


@_gradient_of("Allreduce")
def _(node, *upstream):
    return of_allreduce(list(upstream), reduction_of(node))


def _of_broadcast(upstream: list, root: int, name: str, group: ProcessGroup) -> list:
    """The average of all ranks' gradients at the root and zeros elsewhere, as in Horovod."""
    averaged = allreduce(upstream, _average(name + ".grad", group))
    if is_fixed(group):
        at_root = tf.constant(basics.rank() == root)  # the root is a rank of the job
    else:
        at_root = tf.equal(rank_in(group, name + ".grad"), root)
    # Not zeros alone: the allreduce would then have no gradient here, but one at the root. Nor
    # would a session run it, which runs only what its fetches need.
    return [tf.where(at_root, grad, tf.zeros_like(grad)) for grad in averaged]


@_gradient_of("Broadcast")
def _(node, *upstream):
    return _of_broadcast(list(upstream), root=node.get_attr("root_rank"), **_common(node))


def _of_allgather_in_jit(upstream: list, name: str, group: ProcessGroup) -> list:
    """This rank's rows of the average of all ranks' gradients, as in Horovod.

    A reducescatter's own gradient is not divided by the ranks (see below), but outside of jit this
    is an allreduce, whose gradient is. So the second derivative is told apart.
    """
    name += ".grad"

    @tf.custom_gradient
    def own_rows(grad):
        def gradient(upstream):
            with xla.jit_scope():
                return _of_own_rows(upstream, name, group)

        return reducescatter([grad], _average(name, group))[0], gradient

    return [own_rows(upstream[0])]


def _of_own_rows(upstream, name: str, group: ProcessGroup):
    """The average of what is the ranks' rows and zeros elsewhere; its gradient is theirs again."""

    @tf.custom_gradient
    def all_rows(rows):
        def gradient(upstream):
            with xla.jit_scope():
                return _of_allgather_in_jit([upstream], name, group)[0]

        gathered = allgather(rows, name + ".grad", group)
        return gathered / tf.cast(group.size, gathered.dtype), gradient

    return all_rows(upstream)


@_gradient_of("Allgather")
def _(node, upstream):
    # As inside jit, but here the ranks may have different numbers of rows.
    common, tensor = _common(node), node.inputs[0]
    name, group = common["name"] + ".grad", common["group"]
    rows = tf.concat([tf.shape(tensor, out_type=tf.int64), [1]], 0)[0]  # a scalar is one row
    all_rows = allgather(tf.reshape(rows, [1]), name + ".rows", group)

    averaged = allreduce([upstream], _average(name, group))[0]
    begin = tf.reduce_sum(all_rows[: rank_in(group, name)])
    own = averaged[begin : begin + rows]
    return tf.reshape(own, tf.shape(tensor))


def _of_alltoall_in_jit(upstream: list, name: str, group: ProcessGroup) -> list:
    """The gradients of received rows go back to their senders."""
    return [alltoall_in_jit(upstream[0], name + ".grad", group)]


@_gradient_of("Alltoall")
def _(node, upstream, _):
    common = _common(node)
    splits = node.outputs[1]
    return alltoall(upstream, splits, common["name"] + ".grad", common["group"])[0], None


def _of_reducescatter(upstream, reduction: Reduction) -> list:
    """Gathers each row's gradient from the rank that received the row, and scales it.

    As in Horovod, the gradient of a sum is multiplied by the number of ranks, and the gradient of
    an average is not divided by it.
    """
    _check_differentiable("reducescatter", reduction.op)
    scale = reduction.prescale * reduction.postscale
    if reduction.op == Sum and is_fixed(reduction.group):
        scale *= reduction.group.size
    grads = []
    for i, grad in enumerate(upstream):
        scaled = grad if scale == 1.0 else grad * tf.constant(scale, grad.dtype)
        if reduction.op == Sum and not is_fixed(reduction.group):
            scaled *= tf.cast(size_in(reduction.group, f"{reduction.name}.grad.{i}"), grad.dtype)
        grads.append(allgather(scaled, f"{reduction.name}.grad.{i}", reduction.group))
    return grads


@_gradient_of("Reducescatter")
def _(node, *upstream):
    return _of_reducescatter(upstream, reduction_of(node))


jit_gradients.update(
    allreduce=of_allreduce,
    broadcast=_of_broadcast,
    allgather=_of_allgather_in_jit,
    alltoall=_of_alltoall_in_jit,
    reducescatter=_of_reducescatter,
)
