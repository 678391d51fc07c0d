"""Collectives in which every rank has something for every other one, with Horovod's names.

As those of _collectives.py they run in program order, and disagreement is an error on all ranks.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence

from smddp_tf import _collectives, _native, _ops, _order, _runtime
from smddp_tf._compression import Compression
from smddp_tf._reduce_op import Average, ReduceOp
from smddp_tf._runtime import ProcessSet
from smddp_tf._scaling import factor, scale_apart
from smddp_tf._types import Compressor, TensorLike

tf = _native.tensorflow()


def grouped_allgather(
    tensors: Sequence[TensorLike],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = _runtime.global_process_set,
):
    """Joins each tensor of a list along its first dimension; see allgather().

    Returns:
      A list of tensors, in the order of the input.
    """
    del ignore_name_scope
    name = name or _order.site_name("grouped_allgather")
    return [
        _collectives.allgather(tensor, f"{name}.{i}", process_set=process_set)
        for i, tensor in enumerate(tensors)
    ]


def alltoall(
    tensor: TensorLike,
    splits: TensorLike | None = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = _runtime.global_process_set,
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
    set_id = _runtime.check_process_set(process_set)
    tensor = tf.convert_to_tensor(tensor)
    _collectives.check_dtype(tensor, _collectives.MOVABLE, "alltoall")
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
    name = name or _order.site_name("alltoall")
    output, received = _ops.alltoall(tensor, tf.cast(splits, tf.int32), name, set_id)
    return (output, received) if given else output


def grouped_reducescatter(
    tensors: Sequence[TensorLike],
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    op: ReduceOp | int | None = Average,
    process_set: ProcessSet = _runtime.global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
):
    """Reduces a list of tensors together: one op for each dtype among them.

    Args and errors are those of reducescatter(); tensors is a list (or tuple) and may be empty.

    Returns:
      A list of tensors, in the order of the input.
    """
    del device_dense, device_sparse
    set_id = _runtime.check_process_set(process_set)
    op = _collectives.resolve_op(None, op)
    if _collectives.goes_by_itself(op, compression):
        raise ValueError(
            "reducescatter takes op=Average, Sum, Min, Max or Product, and "
            "Compression.none, .fp16 or .bf16"
        )
    name = name or _order.site_name("grouped_reducescatter")
    tensors = [_check_scatter(tensor) for tensor in tensors]
    packed = [compression.compress(tensor) for tensor in tensors]
    by_dtype: dict = {}
    for i, (tensor, _) in enumerate(packed):
        by_dtype.setdefault(tensor.dtype.base_dtype, []).append(i)
    results: list = [None] * len(tensors)

    def reduce(group, op, prescale, postscale):
        return _ops.reducescatter(group, op, prescale, postscale, name, set_id)

    for indices in by_dtype.values():
        outputs = scale_apart(
            reduce,
            [packed[i][0] for i in indices],
            op,
            factor(prescale_factor),
            factor(postscale_factor),
            process_set.size(),
        )
        for i, output in zip(indices, outputs, strict=True):
            results[i] = compression.decompress(output, packed[i][1])
    return results


def _check_scatter(tensor):
    if isinstance(tensor, tf.IndexedSlices):
        raise NotImplementedError("reducescatter takes dense tensors; use allreduce for slices")
    if isinstance(tensor, numbers.Number):
        tensor = tf.constant(tensor)
    tensor = tf.convert_to_tensor(tensor)
    _collectives.check_dtype(tensor, _collectives.REDUCIBLE, "reducescatter")
    if tensor.shape.rank == 0:
        raise ValueError("reducescatter got a scalar; it takes tensors of at least one dimension")
    return tensor


def reducescatter(
    tensor: TensorLike,
    device_dense: str = "",
    compression: Compressor = Compression.none,
    op: ReduceOp | int | None = Average,
    name: str | None = None,
    process_set: ProcessSet = _runtime.global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
):
    """Reduces a tensor over all ranks; every rank gets some of the result's rows.

    Args:
      tensor: of at least one dimension, of the same shape on all ranks; dtypes as allreduce().
      device_dense: accepted for old scripts; the collective runs on the CPU.
      compression: as allreduce().
      op: Average (the default), Sum, Min, Max or Product.
      name: for messages; must be the same on all ranks.
      process_set: the ranks that take part.
      ignore_name_scope: accepted for old scripts.
      prescale_factor: multiplies the input, with Average and Sum.
      postscale_factor: multiplies the result.

    Returns:
      This rank's rows: first dimension // size of them, and one more on the first
      (first dimension % size) ranks.

    Raises:
      ValueError: before init(), a scalar, or this rank is not in the set.
      TypeError, tf.errors.FailedPreconditionError and others: as allreduce().
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
        name=name or _order.site_name("reducescatter"),
    )[0]


def join():
    """Waits until all ranks have called it, and serves the others' collectives meanwhile.

    For ranks that ran out of data: they take part in allreduces and gradient reductions with zeros
    (an average still divides by all ranks) and in barriers; inside one node also in broadcasts from
    other ranks, and in allgathers with no rows (not inside jit_compile=True, where all ranks have
    as many). Collectives for which that would not do (Min, Max, Product, alltoall, reducescatter,
    a broadcast from this rank) fail on all ranks with FailedPreconditionError.

    A rank that waits here makes no updates, so afterwards its variables are behind: broadcast them
    from the rank that is returned.

    Returns:
      The rank that was the last to call it (between nodes by their clocks), the same on all ranks:
      an int32 scalar.

    Raises:
      ValueError: before init().
      tf.errors.UnknownError: a rank ended without having called it.
    """
    _runtime.size()
    return _ops.join()
