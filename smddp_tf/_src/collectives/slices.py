"""Allreduce of tf.IndexedSlices: gathers rows and indices, or reduces the whole table in XLA."""

from __future__ import annotations

import dataclasses
from typing import Any

from smddp_tf._src.collectives.checks import REDUCIBLE, check_dtype
from smddp_tf._src.graph import ops, xla
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.graph.ops.ranks import is_alone, size_in
from smddp_tf._src.job.reduce_op import Average, ReduceOp, Sum
from smddp_tf._src.job.reduction import Reduction

tf = tensorflow()


def gathers_in_jit(slices: Any, ranks: int, table_rows: int | None = None) -> bool:
    """Whether these slices are gathered inside jit; otherwise the dense table is reduced.

    Gathering needs a static number of rows, and is chosen if it moves less than the table.

    Args:
      slices: tf.IndexedSlices.
      ranks: the number of ranks.
      table_rows: the first dimension of the variable, if known from elsewhere than the slices.
    """
    rows = slices.values.shape.as_list()[0] if slices.values.shape.rank else None
    if table_rows is None and slices.dense_shape is not None:
        shape = tf.get_static_value(slices.dense_shape)
        table_rows = None if shape is None else int(shape[0])
    return rows is not None and (table_rows is None or ranks * rows < table_rows)


def _allreduce_table(slices: Any, reduction: Reduction) -> Any:
    """Reduces the slices as a dense table; returns slices with every row of it."""
    if slices.dense_shape is None:
        xla.refuse(
            "allreduce of tf.IndexedSlices without dense_shape, where their number of rows is not "
            "known,"
        )
    table = tf.convert_to_tensor(slices)
    divides = reduction.op == Average and slices.dtype.is_integer
    # Sums of integers of the rows' type could wrap.
    table = tf.cast(table, _averaged(slices, 1).dtype) if divides else table
    reduction = dataclasses.replace(reduction, op=Sum if divides else reduction.op)
    reduced = ops.allreduce([table], reduction.scaled_by())[0]
    dtype = tf.convert_to_tensor(slices.indices).dtype
    indices = tf.range(tf.cast(slices.dense_shape[0], dtype))
    result = tf.IndexedSlices(reduced, indices, dense_shape=slices.dense_shape)
    return _averaged(result, size_in(reduction.group, reduction.name)) if divides else result


def _averaged(slices: Any, ranks: Any) -> Any:
    """The slices divided by the number of ranks; integers become floats."""
    values = slices.values / tf.cast(ranks, slices.dtype)
    return tf.IndexedSlices(values, slices.indices, dense_shape=slices.dense_shape)


def _for_reduction(values: Any, ranks: Any) -> Any:
    """The values, with a gradient that makes that of their allgather one of their allreduce.

    allgather's is the average of what the ranks' gradients are for its rows, where that of a sum is
    their sum, and that of an average is not divided again.
    """

    @tf.custom_gradient
    def identity(values: Any) -> Any:
        return tf.identity(values), lambda upstream: upstream * tf.cast(ranks, upstream.dtype)

    return identity(values)


def _text(slices: Any, op: int) -> str:
    """What ranks compare besides the rows: each makes the result by itself."""
    table = None if slices.dense_shape is None else tf.get_static_value(slices.dense_shape)
    shape = "unknown" if table is None else [int(dim) for dim in table]
    return f"rows of tf.IndexedSlices op={ReduceOp(op)} dense_shape={shape}"


def allreduce_slices(slices: Any, reduction: Reduction) -> Any:
    """Reduces tf.IndexedSlices by gathering the rows and indices of all ranks.

    Averages of integers are floats, as in Horovod: those of 8 bits float32, others float64.

    Args:
      slices: tf.IndexedSlices.
      reduction: a sum or an average; factors are not applied.

    Raises:
      NotImplementedError: the op is neither Sum nor Average.
    """
    op, group = reduction.op, reduction.group
    if op not in (Average, Sum):
        raise NotImplementedError(
            f"tf.IndexedSlices cannot be reduced with op={op}; use Sum or Average, "
            "or densify with tf.convert_to_tensor"
        )
    if is_alone(group):
        return _averaged(slices, 1) if op == Average and slices.dtype.is_integer else slices
    check_dtype(slices.values, REDUCIBLE, "allreduce")

    in_jit = xla.inside_jit()
    if in_jit and not gathers_in_jit(slices, group.size):
        return _allreduce_table(slices, reduction)
    # A mismatch error shows the name, so it carries the hint.
    hint = " (jit_compile=True needs as many rows on all ranks)" if in_jit else ""
    name, compared = reduction.name + hint, reduction.comparing(_text(slices, op)).compared

    ranks = size_in(group, name)
    own = _for_reduction(slices.values, ranks) if slices.dtype.is_floating else slices.values
    values = ops.allgather(own, name + ".values", group, compared)
    indices = ops.allgather(tf.convert_to_tensor(slices.indices), name + ".indices", group)
    gathered = tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)
    return _averaged(gathered, ranks) if op == Average else gathered
