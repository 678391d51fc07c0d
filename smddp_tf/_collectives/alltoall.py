"""Alltoall: each rank has rows for every other."""

from __future__ import annotations

from smddp_tf._collectives.checks import MOVABLE, check_dtype
from smddp_tf._graph import ops, order
from smddp_tf._graph.framework import tensorflow
from smddp_tf._job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf._types import TensorLike

tf = tensorflow()


def alltoall(
    tensor: TensorLike,
    splits: TensorLike | None = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
):
    """Sends rows of a tensor to every rank, and receives rows from every rank.

    Args:
      tensor: of at least one dimension; all but the first are equal on all ranks. dtypes as
        allgather().
      splits: how many rows go to each rank, in rank order: a list or 1-D tensor of integers with
        one for each rank of the set, which sum to the first dimension. None: as many to each.
      name: for messages; must be the same on all ranks.
      ignore_name_scope: accepted for old scripts.
      process_set: the ranks that take part.

    Returns:
      The received rows, in the order of the ranks they are from; with splits a pair, of these and
      of how many came from each rank (int32).

    Raises:
      ValueError: before init(), this rank is not in the set, or what is wrong is known already
        from static shapes.
      TypeError: a dtype that cannot be sent, or splits that are no integers.
      tf.errors.InvalidArgumentError: on all ranks, if one of them has splits that do not fit.
      tf.errors.FailedPreconditionError and others: as allreduce().
    """
    del ignore_name_scope
    set_id = check_process_set(process_set)
    tensor = tf.convert_to_tensor(tensor)
    check_dtype(tensor, MOVABLE, "alltoall")
    given = splits is not None
    splits = tf.convert_to_tensor(splits) if given else tf.zeros([0], tf.int32)
    if splits.shape.rank not in (1, None):
        raise ValueError(f"splits have shape {splits.shape}; they must have one dimension")
    # Their values are checked by all ranks together, since a rank that raised alone would leave the
    # others waiting. An empty list is told as one that is too long, for none means even splits.
    if given and splits.shape.num_elements() == 0:
        splits = tf.zeros([process_set.size() + 1], tf.int32)
    if not splits.dtype.is_integer:
        raise TypeError(f"splits are of {splits.dtype.name}; they must be integers")
    name = name or order.site_name("alltoall")
    output, received = ops.alltoall(tensor, tf.cast(splits, tf.int32), name, set_id)
    return (output, received) if given else output
