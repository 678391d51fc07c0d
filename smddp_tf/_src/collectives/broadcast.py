"""Broadcast: copies the root's tensor to every rank."""

from __future__ import annotations

from smddp_tf._src.collectives.carried import (
    carried,
    carried_text,
    check_movable,
    dtype_name,
    received,
)
from smddp_tf._src.collectives.checks import (
    check_root,
    resolve_name,
    tensor_of,
)
from smddp_tf._src.graph import ops
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.graph.ops.ranks import is_alone
from smddp_tf._src.job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf._src.types import Tensor, TensorLike

tf = tensorflow()


def broadcast(
    tensor: TensorLike,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Copies the root's tensor to every rank.

    Args:
      tensor: of the same shape and dtype on all ranks; supports the same dtypes as allgather().
      root_rank: the rank to broadcast from, as numbered in the job, not in the set.
      name: identifies the operation in messages; must be the same on all ranks.
      ignore_name_scope: ignored, accepted for compatibility.
      process_set: the ranks that take part; must include this rank.

    Returns:
      A tensor of the input's shape and dtype.

    Raises:
      ValueError: root_rank is not in the set.
      TypeError, tf.errors.FailedPreconditionError and others: same as allreduce().

    Examples:
      >>> hvd.broadcast(tf.constant([hvd.rank(), 7]), root_rank=0).numpy().tolist()
      [0, 7]
    """
    del ignore_name_scope
    group = check_process_set(process_set)
    root_rank = check_root(root_rank, process_set)
    tensor = tensor_of(tensor, "broadcast")
    check_movable(tensor, "broadcast")
    if is_alone(group):
        return tf.identity(tensor)
    name = resolve_name(name, "broadcast", group)
    dtype = dtype_name(tensor)
    sent = [carried(tensor)]
    return received(ops.broadcast(sent, root_rank, name, group, carried_text(dtype))[0], dtype)
