"""Reducescatter: each rank receives some rows of the reduced tensor."""

from __future__ import annotations

import numbers
from collections.abc import Sequence

from smddp_tf._src.collectives.carried import check_reducible
from smddp_tf._src.collectives.checks import (
    check_devices,
    list_of,
    resolve_name,
    resolve_op,
    tensor_of,
)
from smddp_tf._src.collectives.reduction import (
    emit_by_dtype,
    needs_gather,
    reduce_tensors,
    resolve_reduction,
)
from smddp_tf._src.compression import Compression
from smddp_tf._src.graph import ops
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf._src.job.reduce_op import Average, ReduceOp
from smddp_tf._src.types import Compressor, Tensor, TensorLike

tf = tensorflow()


def grouped_reducescatter(
    tensors: Sequence[TensorLike],
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    op: ReduceOp | int | None = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> list[Tensor]:
    """Reduces a list of tensors together, with one op per dtype.

    Arguments and errors are the same as reducescatter()'s; tensors is a list or tuple and may be
    empty.

    Returns:
      A list of tensors, in the order of the input.

    Examples:
      >>> a, b = hvd.grouped_reducescatter([tf.ones([4]), tf.ones([4, 2])], op=hvd.Sum)
      >>> b.shape[1]
      2
    """
    check_devices(device_dense=device_dense, device_sparse=device_sparse)
    kind, factors = "grouped_reducescatter", (prescale_factor, postscale_factor)
    op = resolve_op(None, op)
    reduction = resolve_reduction(kind, op, factors, compression, name, process_set)
    if needs_gather(reduction):
        raise ValueError(
            "reducescatter takes op=Average, Sum, Min, Max or Product, and "
            "Compression.none, .fp16 or .bf16"
        )
    tensors = [_check_scatter(tensor, op) for tensor in list_of(tensors, kind, "tensors")]
    keys = [None] * len(tensors)
    emit = emit_by_dtype(ops.reducescatter)
    return reduce_tensors(tensors, reduction, lambda _: reduction, keys, emit)  # none alone


def _check_scatter(tensor: Tensor, op: ReduceOp) -> Tensor:
    if isinstance(tensor, tf.IndexedSlices):
        raise NotImplementedError("reducescatter takes dense tensors; use allreduce for slices")
    if isinstance(tensor, numbers.Number):
        tensor = tf.constant(tensor)
    tensor = tensor_of(tensor, "reducescatter")
    check_reducible(tensor, op, "reducescatter")
    if tensor.shape.rank == 0:
        raise ValueError("reducescatter got a scalar; it takes tensors of at least one dimension")
    return tensor


def reducescatter(
    tensor: TensorLike,
    device_dense: str = "",
    compression: Compressor = Compression.none,
    op: ReduceOp | int | None = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Reduces a tensor over all ranks; each rank receives some rows of the result.

    Args:
      tensor: of at least one dimension and of the same shape on all ranks; supports the same
        dtypes as allreduce().
      device_dense: ignored, accepted for compatibility; the collective runs on the CPU.
      compression: Compression.none, .fp16 or .bf16.
      op: Average (the default), Sum, Min, Max or Product.
      name: identifies the operation in messages; must be the same on all ranks.
      process_set: the ranks that take part.
      ignore_name_scope: ignored, accepted for compatibility.
      prescale_factor: multiplies the input, as allreduce()'s does.
      postscale_factor: multiplies the result, as allreduce()'s does.

    Returns:
      This rank's rows: (first dimension // size) of them, plus one on the first
      (first dimension % size) ranks.

    Raises:
      ValueError: init() was not called, the tensor is a scalar, op or compression is not
        supported, or this rank is not in the set.
      TypeError, tf.errors.FailedPreconditionError and others: same as allreduce().

    Examples:
      >>> rows = hvd.reducescatter(tf.ones([2 * hvd.size(), 3]), op=hvd.Sum)  # two for each rank
      >>> rows.shape
      TensorShape([2, 3])
    """
    del ignore_name_scope
    return grouped_reducescatter(
        [tensor],
        device_dense,
        compression=compression,
        op=op,
        process_set=process_set,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name or resolve_name(name, "reducescatter", check_process_set(process_set)),
    )[0]
