"""Allreduce of one tensor, or of a list of tensors as one operation per dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smddp_tf._collectives.checks import (
    REDUCIBLE,
    check_devices,
    check_dtype,
    list_of,
    name_or_site,
    resolve_op,
    tensor_of,
)
from smddp_tf._collectives.reduction import (
    bypasses_plan,
    compressor_text,
    gather_and_combine,
    places_text,
    reduce_dense,
    words,
)
from smddp_tf._collectives.scaling import factor, factors_text, scaled
from smddp_tf._collectives.slices import allreduce_slices
from smddp_tf._compression import Compression
from smddp_tf._graph.framework import tensorflow
from smddp_tf._job.process_sets import Group, ProcessSet, check_process_set, global_process_set
from smddp_tf._job.reduce_op import ReduceOp
from smddp_tf._types import Compressor, TensorLike

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
        float16, bfloat16, float32, float64, uint8, int8, int32 or int64; or tf.IndexedSlices, whose
        rows may differ. (Inside jit_compile=True all ranks must have the same number of rows; the
        result holds the rows of all ranks, or every row of the table where that is smaller.)
      average: Horovod's old name for op: True is op=Average, False is op=Sum.
      device_dense: ignored, accepted for compatibility; the collective runs on the CPU.
      device_sparse: same as device_dense.
      compression: Compression.none, .fp16, .bf16, .int8 or .topk(ratio).
      op: Average (the default), Sum, Adasum, Min, Max or Product. 16-bit floats are summed in
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
    group = check_process_set(process_set)
    op = resolve_op(average, op)
    given_name, name = name, name_or_site(name, "allreduce", group)

    scales = factor(prescale_factor), factor(postscale_factor)
    return _allreduce(tensor, op, compression, scales, name, given_name, group)


def _allreduce(tensor, op, compression, scales, name, given_name, group: Group, rest: str = ""):
    """allreduce() of one tensor, with arguments that are checked.

    scales are the factors, given_name is what compressors know the tensor by, and rest is what
    ranks compare besides.
    """
    if isinstance(tensor, tf.IndexedSlices):
        if scales != (1.0, 1.0):
            raise NotImplementedError("tf.IndexedSlices cannot be scaled by pre- or postscale")
        return allreduce_slices(tensor, op, name, group, rest)

    tensor = tensor_of(tensor, "allreduce")
    check_dtype(tensor, REDUCIBLE, "allreduce")
    if bypasses_plan(op, compression):
        prescale, postscale = scales
        apart = words(factors_text(*scales), rest)
        result = scaled(tensor, prescale)
        if group.size > 1:
            result = gather_and_combine(result, op, compression, name, given_name, group, apart)
        return scaled(result, postscale)

    packed, context = compression.compress(tensor)
    how = words(compressor_text(compression), rest)
    result = reduce_dense([packed], op, *scales, name, group, how)[0]
    return compression.decompress(result, context)


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
    group = check_process_set(process_set)
    op = resolve_op(average, op)
    given_name, name = name, name_or_site(name, "grouped_allreduce", group)

    tensors = list_of(tensors, "grouped_allreduce", "tensors")
    scales = factor(prescale_factor), factor(postscale_factor)

    def alone(i, named, given):
        rest = f"place {i} of a list of {len(tensors)}"
        return _allreduce(tensors[i], op, compression, scales, named, given, group, rest)

    if bypasses_plan(op, compression):
        return [
            alone(i, f"{name}.{i}", f"{given_name}.{i}" if given_name else None)
            for i in range(len(tensors))
        ]

    results: list = [None] * len(tensors)
    dense = [i for i, one in enumerate(tensors) if not isinstance(one, tf.IndexedSlices)]
    for i in sorted(set(range(len(tensors))) - set(dense)):
        results[i] = alone(i, f"{name}.{i}", None)

    packed = []
    for i in dense:
        tensor = tensor_of(tensors[i], "allreduce")
        check_dtype(tensor, REDUCIBLE, "allreduce")
        packed.append(compression.compress(tensor))

    # The ranks compare the list too: an op has a part of it only.
    rest = words(places_text(dense, len(tensors)), compressor_text(compression))
    reduced = reduce_dense([tensor for tensor, _ in packed], op, *scales, name, group, rest)
    for i, result, (_, context) in zip(dense, reduced, packed, strict=True):
        results[i] = compression.decompress(result, context)
    return results
