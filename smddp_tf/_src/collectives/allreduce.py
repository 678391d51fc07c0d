"""Allreduce of one tensor, or of a list of tensors as one operation per dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from smddp_tf._src.collectives.carried import check_reducible
from smddp_tf._src.collectives.checks import (
    check_devices,
    list_of,
    resolve_op,
    tensor_of,
)
from smddp_tf._src.collectives.reduction import (
    allreduce_by_dtype,
    reduce_tensors,
    resolve_reduction,
)
from smddp_tf._src.compression import Compression
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job.process_sets import ProcessSet, global_process_set
from smddp_tf._src.job.reduce_op import ReduceOp
from smddp_tf._src.job.reduction import Reduction
from smddp_tf._src.types import Compressor, TensorLike

tf = tensorflow()


def allreduce(
    tensor: TensorLike,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    op: ReduceOp | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduces a tensor over all ranks; every rank gets the result.

    Args:
      tensor: tf.Tensor, tf.Variable, numpy array or number, of the same shape on all ranks, of
        float16, bfloat16, float32, float64, uint8, int8, int32, int64, complex64 or complex128; or
        tf.IndexedSlices, whose rows may differ. (Inside jit_compile=True all ranks must have the
        same number of rows; the result holds the rows of all ranks, or every row of the table where
        that is smaller.)
      average: Horovod's old name for op: True is op=Average, False is op=Sum.
      device_dense: ignored, accepted for compatibility; the collective runs on the CPU.
      device_sparse: same as device_dense.
      compression: Compression.none, .fp16, .bf16, .int8 or .topk(ratio).
      op: Average (the default), Sum, Adasum, Min, Max or Product; of complex numbers one of the
        first three. 16-bit floats are summed in
        float32; averages of integers are truncated towards zero, but those of tf.IndexedSlices
        are floats, as in Horovod. A NaN on any rank is the Min and the Max.
      prescale_factor: multiplies the input, as float64 with float64 tensors. Integers are
        multiplied as float64, by the factor rounded to float32, and truncated, as in Horovod.
      postscale_factor: multiplies the result, in the same way. Averages of integers are summed in
        wider integers (but for int64), scaled, and only then truncated.
      name: identifies the operation in messages; must be the same on all ranks.
      process_set: the ranks that take part; must include this rank.
      ignore_name_scope: ignored, accepted for compatibility.

    Returns:
      A tensor of the input's shape and dtype, bitwise the same on every rank.

    Raises:
      ValueError: init() was not called, arguments contradict each other, a factor of integers is
        infinite, or this rank is not in the set.
      TypeError: the dtype cannot be reduced.
      tf.errors.FailedPreconditionError: the ranks' operations do not match.
      tf.errors.UnknownError: a rank died.
      tf.errors.DeadlineExceededError: a rank did not arrive within SMDDP_TIMEOUT_SECONDS.

    Examples:
      >>> hvd.allreduce(tf.constant([1.0, 2.0])).numpy().tolist()  # the mean
      [1.0, 2.0]
      >>> float(hvd.allreduce(1.0, op=hvd.Sum)) == hvd.size()
      True
    """
    del ignore_name_scope
    check_devices(device_dense=device_dense, device_sparse=device_sparse)
    op, factors = resolve_op(average, op), (prescale_factor, postscale_factor)
    reduction = resolve_reduction("allreduce", op, factors, compression, name, process_set)
    return _reduce([tensor], reduction, lambda _: reduction, [name])[0]


def grouped_allreduce(
    tensors: Sequence[TensorLike],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    op: ReduceOp | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduces a list of tensors together, with one op per dtype.

    Arguments and errors are the same as allreduce()'s. tensors is a list or tuple; it may be empty
    and may contain tf.IndexedSlices.

    Returns:
      A list of tensors, in the order of the input.

    Examples:
      >>> loss, accuracy = hvd.grouped_allreduce([tf.constant(0.5), tf.constant(0.75)])
      >>> float(accuracy)
      0.75
    """
    del ignore_name_scope
    check_devices(device_dense=device_dense, device_sparse=device_sparse)
    op, factors = resolve_op(average, op), (prescale_factor, postscale_factor)
    reduction = resolve_reduction("grouped_allreduce", op, factors, compression, name, process_set)
    tensors = list_of(tensors, "grouped_allreduce", "tensors")
    count = len(tensors)

    def alone(i: int) -> Reduction:
        own = reduction.named(f"{reduction.name}.{i}")
        return own.comparing(f"place {i} of a list of {count}")

    keys = [f"{name}.{i}" if name else None for i in range(count)]
    return _reduce(tensors, reduction, alone, keys)


def _reduce(
    values: list[Any], reduction: Reduction, alone: Callable[[int], Reduction], keys: list[Any]
) -> list[Any]:
    """Reduces what a script gave: slices, tensors, or what can be one."""
    tensors = []
    for value in values:
        if not isinstance(value, tf.IndexedSlices):
            value = tensor_of(value, "allreduce")
            check_reducible(value, reduction.op, "allreduce")
        elif reduction.scales:
            raise NotImplementedError("tf.IndexedSlices cannot be scaled by pre- or postscale")
        tensors.append(value)
    return reduce_tensors(tensors, reduction, alone, keys, allreduce_by_dtype)
