"""Allgather: concatenates the ranks' tensors along the first dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smddp_tf._src.collectives.carried import (
    carried,
    carried_text,
    check_movable,
    dtype_name,
    received,
)
from smddp_tf._src.collectives.checks import list_of, resolve_name, tensor_of
from smddp_tf._src.graph import ops
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.graph.ops.ranks import is_alone
from smddp_tf._src.job.process_sets import (
    ProcessGroup,
    ProcessSet,
    check_process_set,
    global_process_set,
)
from smddp_tf._src.types import Tensor, TensorLike

tf = tensorflow()


def allgather(
    tensor: TensorLike,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Concatenates the ranks' tensors along the first dimension, in rank order.

    Args:
      tensor: of any shape; all dimensions except the first must be equal on all ranks. A scalar
        counts as one row. Supports allreduce's dtypes and bool, int16, uint16, uint32, uint64,
        int4, uint4, float8_e4m3fn, float8_e5m2, qint8, quint8 and qint32.
      name: identifies the operation in messages; must be the same on all ranks.
      ignore_name_scope: ignored, accepted for compatibility.
      process_set: the ranks that take part; must include this rank.

    Returns:
      A tensor whose first dimension is the sum of the ranks' first dimensions.

    Raises:
      TypeError, tf.errors.FailedPreconditionError and others: same as allreduce().

    Examples:
      >>> rows = hvd.allgather(tf.constant([[1, 2]]))  # one row of each rank
      >>> rows.shape == (hvd.size(), 2)
      True
    """
    del ignore_name_scope
    group = check_process_set(process_set)
    return _allgather(tensor, name, group)


def _allgather(tensor: Tensor, name: Any, group: ProcessGroup, description: str = "") -> Tensor:
    """allgather(); description is what ranks compare besides the tensor."""
    tensor = tensor_of(tensor, "allgather")
    check_movable(tensor, "allgather")
    if is_alone(group):
        return _rows(tensor)
    dtype, name = dtype_name(tensor), resolve_name(name, "allgather", group)
    compared = "\n".join(filter(None, [description, carried_text(dtype)]))
    sent = carried(_rows(tensor) if tensor.dtype.is_complex else tensor)  # parts of one row
    return received(ops.allgather(sent, name, group, compared), dtype)


def _rows(tensor: Tensor) -> Tensor:
    """The tensor; a scalar as one row."""
    if tensor.shape.rank is None:  # it may be a scalar
        shape = tf.concat([tf.shape(tensor), [1]], 0)
        return tf.reshape(tensor, shape[: tf.maximum(tf.rank(tensor), 1)])
    return tf.reshape(tensor, [1]) if tensor.shape.rank == 0 else tf.identity(tensor)


def grouped_allgather(
    tensors: Sequence[TensorLike],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Concatenates each tensor of a list along its first dimension; see allgather().

    Returns:
      A list of tensors, in the order of the input.

    Examples:
      >>> steps, losses = hvd.grouped_allgather([tf.constant([3]), tf.constant([0.5])])
      >>> len(losses) == hvd.size()
      True
    """
    del ignore_name_scope
    group = check_process_set(process_set)
    name = resolve_name(name, "grouped_allgather", group)
    tensors = list_of(tensors, "grouped_allgather", "tensors")
    return [
        _allgather(tensor, f"{name}.{i}", group, f"place {i} of a list of {len(tensors)}")
        for i, tensor in enumerate(tensors)
    ]
