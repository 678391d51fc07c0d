"""The collectives that a script calls by hand, with Horovod's names and arguments.

They run in program order, which must be the same on all ranks. If the ranks do not ask for the same
thing, ``tf.errors.FailedPreconditionError`` is raised on all of them, with what each side has; the
job can catch it and go on.
"""

from smddp_tf import _native, _ops, _runtime
from smddp_tf._compression import Compression
from smddp_tf._ops import Adasum, Average, Max, Min, Product, Sum

tf = _native.tensorflow()

REDUCIBLE = ("float16", "bfloat16", "float32", "float64", "uint8", "int8", "int32", "int64")
MOVABLE = (*REDUCIBLE, "bool", "int16", "uint16")


def resolve_op(average, op) -> int:
    """Horovod's rule for its old `average` and its new `op` argument.

    Raises:
      ValueError: both are given, or op is unknown or not supported.
    """
    if average is not None and op is not None:
        raise ValueError("give op or average, not both; average is Horovod's old name for op")
    if op is None:
        op = Average if average in (None, True) else Sum
    if op == Adasum:
        raise ValueError("op=Adasum is not supported; use Average, Sum, Min, Max or Product")
    if op not in (Average, Sum, Min, Max, Product):
        raise ValueError(f"op={op!r} is unknown; use Average, Sum, Min, Max or Product")
    return int(op)


def check_dtype(tensor, accepted, what: str) -> None:
    """Refuses a dtype before anything is sent.

    Raises:
      TypeError: the tensor's dtype is not among the accepted ones.
    """
    if tensor.dtype.base_dtype.name not in accepted:
        raise TypeError(
            f"{what} of {tensor.dtype.base_dtype.name} is not supported; it takes "
            + ", ".join(accepted)
        )


def check_root(root_rank: int) -> int:
    """Refuses a root that is no rank of the job.

    Raises:
      ValueError: the root is out of range.
    """
    if not 0 <= int(root_rank) < _runtime.size():
        last = _runtime.size() - 1
        raise ValueError(f"root_rank={root_rank} is out of range: the ranks are 0 to {last}")
    return int(root_rank)


def _scaled(tensor, factor: float):
    return tensor if factor == 1.0 else tensor * tf.cast(factor, tensor.dtype)


def _reduce_dense(tensors: list, op: int, prescale: float, postscale: float, name: str) -> list:
    """Reduces tensors of any dtypes, one op for each dtype."""
    if op not in (Average, Sum) and prescale != 1.0:
        # Only sums may be scaled afterwards instead.
        tensors, prescale = [_scaled(tensor, prescale) for tensor in tensors], 1.0
    if _runtime.size() == 1:
        return [_scaled(tensor, prescale * postscale) for tensor in tensors]
    results: list = [None] * len(tensors)
    by_dtype: dict = {}
    for i, tensor in enumerate(tensors):
        by_dtype.setdefault(tensor.dtype.base_dtype, []).append(i)
    for indices in by_dtype.values():
        group = [tensors[i] for i in indices]
        for i, result in zip(
            indices, _ops.allreduce(group, op, prescale, postscale, name), strict=True
        ):
            results[i] = result
    return results


def allreduce_slices(slices, op: int, name: str):
    """Reduces sparse values by gathering rows and indices of all ranks.

    Raises:
      NotImplementedError: op is neither Sum nor Average.
    """
    if op not in (Average, Sum):
        raise NotImplementedError(
            f"tf.IndexedSlices cannot be reduced with op={_ops.OP_NAMES[op]}; use Sum or Average, "
            "or densify with tf.convert_to_tensor"
        )
    if _runtime.size() == 1:
        return slices
    check_dtype(slices.values, REDUCIBLE, "allreduce")
    values = _ops.allgather(slices.values, name + ".values")
    indices = _ops.allgather(slices.indices, name + ".indices")
    if op == Average:
        values = values / tf.cast(_runtime.size(), values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)


def allreduce(
    tensor,
    average=None,
    device_dense="",
    device_sparse="",
    compression=Compression.none,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    name=None,
    process_set=_runtime.global_process_set,
    ignore_name_scope=False,
):
    """Reduces a tensor over all ranks; every rank gets the result.

    Args:
      tensor: tf.Tensor, tf.Variable, numpy array or number, of the same shape on all ranks, of
        float16, bfloat16, float32, float64, uint8, int8, int32 or int64; or tf.IndexedSlices, whose
        rows may differ.
      average: old name: True is op=Average, False is op=Sum.
      device_dense: accepted for old scripts; the collective runs on the CPU.
      device_sparse: as device_dense.
      compression: Compression.none, .fp16 or .bf16.
      op: Average (the default), Sum, Min, Max or Product. 16-bit floats are summed in float32;
        averages of integers are truncated towards zero.
      prescale_factor: multiplies the input.
      postscale_factor: multiplies the result.
      name: for messages; must be the same on all ranks.
      process_set: the global one.
      ignore_name_scope: accepted for old scripts.

    Returns:
      A tensor of the input's shape and dtype, bitwise the same on every rank.

    Raises:
      ValueError: before init(), or arguments contradict each other.
      TypeError: a dtype that cannot be reduced.
      tf.errors.FailedPreconditionError: the ranks do not agree.
      tf.errors.UnknownError: a rank died.
      tf.errors.DeadlineExceededError: a rank did not come in SMDDP_TIMEOUT_SECONDS.
    """
    del device_dense, device_sparse, ignore_name_scope
    _runtime.check_process_set(process_set)
    op = resolve_op(average, op)
    name = name or "allreduce"
    if isinstance(tensor, tf.IndexedSlices):
        if prescale_factor != 1.0 or postscale_factor != 1.0:
            raise NotImplementedError("tf.IndexedSlices cannot be scaled by pre- or postscale")
        return allreduce_slices(tensor, op, name)
    tensor = tf.convert_to_tensor(tensor)
    check_dtype(tensor, REDUCIBLE, "allreduce")
    packed, context = compression.compress(tensor)
    result = _reduce_dense([packed], op, float(prescale_factor), float(postscale_factor), name)[0]
    return compression.decompress(result, context)


def grouped_allreduce(
    tensors,
    average=None,
    device_dense="",
    device_sparse="",
    compression=Compression.none,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=_runtime.global_process_set,
    ignore_name_scope=False,
    name=None,
):
    """Reduces a list of tensors together: one op for each dtype among them.

    Args and errors are those of allreduce(); tensors is a list (or tuple) and may be empty.

    Returns:
      A list of tensors, in the order of the input.
    """
    del device_dense, device_sparse, ignore_name_scope
    _runtime.check_process_set(process_set)
    op = resolve_op(average, op)
    name = name or "grouped_allreduce"
    tensors = list(tensors)
    if any(isinstance(tensor, tf.IndexedSlices) for tensor in tensors):
        raise NotImplementedError("grouped_allreduce takes dense tensors; use allreduce for slices")
    tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
    for tensor in tensors:
        check_dtype(tensor, REDUCIBLE, "allreduce")
    packed = [compression.compress(tensor) for tensor in tensors]
    results = _reduce_dense(
        [tensor for tensor, _ in packed], op, float(prescale_factor), float(postscale_factor), name
    )
    return [
        compression.decompress(result, context)
        for result, (_, context) in zip(results, packed, strict=True)
    ]


def allgather(tensor, name=None, ignore_name_scope=False, process_set=_runtime.global_process_set):
    """Joins the ranks' tensors along their first dimension, in rank order.

    Args:
      tensor: any shape; all dimensions but the first are equal on all ranks. A scalar counts as
        one row. bool, int16 and uint16 are taken besides allreduce's dtypes.
      name: for messages; must be the same on all ranks.
      ignore_name_scope: accepted for old scripts.
      process_set: the global one.

    Returns:
      A tensor whose first dimension is the sum of the ranks'.

    Raises:
      TypeError, tf.errors.FailedPreconditionError and others: as allreduce().
    """
    del ignore_name_scope
    _runtime.check_process_set(process_set)
    tensor = tf.convert_to_tensor(tensor)
    check_dtype(tensor, MOVABLE, "allgather")
    if _runtime.size() == 1:
        return tf.reshape(tensor, [1]) if tensor.shape.rank == 0 else tf.identity(tensor)
    return _ops.allgather(tensor, name or "allgather")


def broadcast(
    tensor,
    root_rank,
    name=None,
    ignore_name_scope=False,
    process_set=_runtime.global_process_set,
):
    """Gives every rank the root's tensor.

    Args:
      tensor: of the same shape and dtype on all ranks; dtypes as allgather().
      root_rank: the rank whose value all get.
      name: for messages; must be the same on all ranks.
      ignore_name_scope: accepted for old scripts.
      process_set: the global one.

    Returns:
      A tensor of the input's shape and dtype.

    Raises:
      ValueError: root_rank is no rank.
      TypeError, tf.errors.FailedPreconditionError and others: as allreduce().
    """
    del ignore_name_scope
    _runtime.check_process_set(process_set)
    root_rank = check_root(root_rank)
    tensor = tf.convert_to_tensor(tensor)
    check_dtype(tensor, MOVABLE, "broadcast")
    if _runtime.size() == 1:
        return tf.identity(tensor)
    return _ops.broadcast([tensor], root_rank, name or "broadcast")[0]


def barrier(process_set=_runtime.global_process_set, name=None):
    """Returns when every rank has called it."""
    _runtime.check_process_set(process_set)
    return None if _runtime.size() == 1 else _ops.barrier(name or "barrier")
