"""Alltoall: every rank sends some of its rows to every other rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from smddp_tf._src.collectives.carried import (
    CARRIED,
    carried,
    carried_text,
    check_movable,
    dtype_name,
    received,
)
from smddp_tf._src.collectives.checks import resolve_name, tensor_of
from smddp_tf._src.graph import ops
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf._src.types import TensorLike

tf = tensorflow()

_EVEN = np.zeros(0, np.int32)  # eagerly a fifth of the time of tf.zeros()


def alltoall(
    tensor: TensorLike,
    splits: TensorLike | None = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends rows of a tensor to every rank, and receives rows from every rank.

    Args:
      tensor: of at least one dimension; all dimensions except the first must be equal on all
        ranks. Supports the same dtypes as allgather().
      splits: the number of rows for each rank, in rank order: a list or 1-D tensor of integers,
        one per rank of the set, whose sum is the first dimension, each below 2**31. None: the same
        number for each.
      name: identifies the operation in messages; must be the same on all ranks.
      ignore_name_scope: ignored, accepted for compatibility.
      process_set: the ranks that take part.

    Returns:
      The received rows, ordered by sending rank. With splits, a pair: the rows, and the number
      received from each rank (int32).

    Raises:
      ValueError: init() was not called, this rank is not in the set, or static shapes already show
        that the arguments are invalid.
      TypeError: the dtype cannot be sent, or splits are not integers.
      tf.errors.InvalidArgumentError: some rank's splits do not fit its tensor; raised on all ranks.
      tf.errors.FailedPreconditionError and others: same as allreduce().

    Examples:
      >>> rows = tf.range(2 * hvd.size())  # two for each rank
      >>> hvd.alltoall(rows).numpy().tolist()
      [0, 1]
      >>> received, counts = hvd.alltoall(rows, splits=[2] * hvd.size())
      >>> counts.numpy().tolist()
      [2]
    """
    del ignore_name_scope
    group = check_process_set(process_set)
    tensor = tensor_of(tensor, "alltoall")
    check_movable(tensor, "alltoall")
    if tensor.dtype.is_complex and not tensor.shape.rank:  # two parts are no two rows
        raise ValueError(
            f"alltoall of {tensor.dtype.name} takes a shape with a known number of dimensions, at "
            f"least one, not {tensor.shape}; tf.ensure_shape() or tf.reshape() tell it"
        )
    given = splits is not None
    counts = tf.convert_to_tensor(splits if given else _EVEN)
    if counts.shape.rank not in (1, None):
        raise ValueError(f"splits have shape {counts.shape}; they must have one dimension")

    # Values are checked inside the collective: a rank that raised alone would leave the others
    # waiting. The op takes an empty list as "even splits", so turn the caller's empty list into one
    # that is too long, which every rank then rejects.
    if given and counts.shape.num_elements() == 0:
        counts = tf.fill([group.size + 1], -1)  # at no number of ranks are these valid
    if not counts.dtype.is_integer:
        raise TypeError(f"splits are of {counts.dtype.name}; they must be integers")

    name = resolve_name(name, "alltoall", group)
    if counts.dtype != tf.int32:  # of 2**32 + 1 a cast alone makes 1
        counts = tf.raw_ops.ClipByValue(  # eagerly ten times as fast as tf.saturate_cast()
            t=tf.cast(counts, tf.int64),
            clip_value_min=tf.int32.min,
            clip_value_max=tf.int32.max,
        )
        counts = tf.cast(counts, tf.int32)
    dtype = dtype_name(tensor)
    if dtype in CARRIED:  # the op has no description for ranks to compare
        name = f"{name} {carried_text(dtype)}"
    output, sizes = ops.alltoall(carried(tensor), counts, name, group)
    output = received(output, dtype)
    return (output, sizes) if given else output
