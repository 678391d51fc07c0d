"""The collectives that a script calls by hand, with Horovod's names and arguments.

They run in program order, which must be the same on all ranks. If the ranks do not ask for the same
thing, ``tf.errors.FailedPreconditionError`` is raised on all of them, with what each side has; the
job can catch it and go on.
"""

from __future__ import annotations

from collections.abc import Sequence

from smddp_tf import _adasum, _native, _ops, _order, _runtime, _xla
from smddp_tf._compression import Compression, check_compressor
from smddp_tf._reduce_op import Adasum, Average, ReduceOp, Sum
from smddp_tf._runtime import ProcessSet
from smddp_tf._scaling import factor, scale_apart, scaled
from smddp_tf._types import Compressor, TensorLike

tf = _native.tensorflow()

REDUCIBLE = ("float16", "bfloat16", "float32", "float64", "uint8", "int8", "int32", "int64")
MOVABLE = (*REDUCIBLE, "bool", "int16", "uint16")


def resolve_op(average, op) -> ReduceOp:
    """Horovod's rule for its old `average` and its new `op` argument.

    Raises:
      ValueError: both are given, or op is unknown or not supported.
    """
    if average is not None and op is not None:
        raise ValueError("give op or average, not both; average is Horovod's old name for op")
    if op is None:
        op = Average if average in (None, True) else Sum
    try:
        return ReduceOp(op)
    except ValueError:
        names = ", ".join(map(str, ReduceOp))
        raise ValueError(f"op={op!r} is unknown; use one of {names}") from None


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


def check_root(root_rank: int, process_set=_runtime.global_process_set) -> int:
    """Refuses a root (a rank of the job) that is not in the process set.

    Raises:
      ValueError: it is not.
    """
    if not 0 <= int(root_rank) < _runtime.size():
        last = _runtime.size() - 1
        raise ValueError(f"root_rank={root_rank} is out of range: the ranks are 0 to {last}")
    if process_set.process_set_id != 0 and int(root_rank) not in process_set.ranks:
        raise ValueError(
            f"root_rank={root_rank} is not in {process_set!r}; it is the rank in the job, not the "
            "one in the set"
        )
    return int(root_rank)


def _gatherer(name: str, process_set):
    """A function that stacks a tensor of all ranks of the set along a new first dimension."""
    calls = iter(range(1 << 30))

    def gather(tensor):
        gathered = _ops.allgather(
            tensor[tf.newaxis], f"{name}.{next(calls)}", process_set.process_set_id
        )
        gathered.set_shape([process_set.size(), *tensor.shape.as_list()])
        return gathered

    return gather


def reduce_by_itself(tensor, op: int, compression, name: str, key, process_set):
    """Reduces one tensor with Adasum, or with a compressor that does the whole reduction.

    Raises:
      ValueError: that compressor was given with another op than Average and Sum, or a tensor whose
        shape is not known.
      TypeError: Adasum of integers.
    """
    gather = _gatherer(name, process_set)
    if hasattr(compression, "reduce"):
        if op not in (Average, Sum):
            raise ValueError(f"this compression takes op=Average or Sum, not {op}")
        if not tensor.dtype.is_floating:
            return _reduce_dense([tensor], op, 1.0, 1.0, name, process_set)[0]
        if not tensor.shape.is_fully_defined():
            raise ValueError(
                f"this compression needs a shape that is known when the function is traced, not "
                f"{tensor.shape}; use Compression.none, .fp16 or .bf16"
            )
        return compression.reduce(tensor, op == Average, key, gather)
    if not tensor.dtype.is_floating:
        raise TypeError(f"Adasum takes floating-point tensors, not {tensor.dtype.name}")
    first = process_set.ranks[0]

    def agree(products):
        number = process_set.process_set_id
        return _ops.broadcast([products], first, f"{name}.products", number)[0]

    packed, context = compression.compress(tensor)
    return compression.decompress(_adasum.adasum(gather(packed), agree), context)


def goes_by_itself(op: int, compression) -> bool:
    """Whether reduce_by_itself() is for this. ValueError: compression is no compressor."""
    check_compressor(compression)
    return op == Adasum or hasattr(compression, "reduce")


def _reduce_dense(
    tensors: list, op: int, prescale: float, postscale: float, name: str, process_set
) -> list:
    """Reduces tensors of any dtypes, one op for each dtype."""
    if process_set.size() == 1:
        return [scaled(scaled(tensor, prescale), postscale) for tensor in tensors]

    def reduce(group, op, prescale, postscale):
        return _ops.allreduce(group, op, prescale, postscale, name, process_set.process_set_id)

    results: list = [None] * len(tensors)
    by_dtype: dict = {}
    for i, tensor in enumerate(tensors):
        by_dtype.setdefault(tensor.dtype.base_dtype, []).append(i)
    for indices in by_dtype.values():
        group = [tensors[i] for i in indices]
        reduced = scale_apart(reduce, group, op, prescale, postscale, process_set.size())
        for i, result in zip(indices, reduced, strict=True):
            results[i] = result
    return results


def gathers_in_jit(slices, ranks: int, table_rows=None) -> bool:
    """Whether XLA gathers the rows of these slices; else it reduces the whole table they are of.

    Args:
      slices: tf.IndexedSlices.
      ranks: how many ranks gather.
      table_rows: of the variable, if that is known otherwise than from the slices.
    """
    rows = slices.values.shape[0]
    if table_rows is None and slices.dense_shape is not None:
        shape = tf.get_static_value(slices.dense_shape)
        table_rows = None if shape is None else int(shape[0])
    return rows is not None and (table_rows is None or ranks * rows < table_rows)


def _allreduce_table(slices, op: int, name: str, process_set):
    """The sum of sparse values as slices that have every row of the table."""
    if slices.dense_shape is None:
        _xla.refuse(
            "allreduce of tf.IndexedSlices whose number of rows is not known, and that have no "
            "dense_shape,"
        )
    table = tf.convert_to_tensor(slices)
    reduced = _reduce_dense([table], op, 1.0, 1.0, name, process_set)[0]
    indices = tf.range(tf.cast(slices.dense_shape[0], slices.indices.dtype))
    return tf.IndexedSlices(reduced, indices, dense_shape=slices.dense_shape)


def allreduce_slices(slices, op: int, name: str, process_set):
    """Reduces sparse values by gathering rows and indices of the set's ranks.

    Raises:
      NotImplementedError: op is neither Sum nor Average.
    """
    if op not in (Average, Sum):
        raise NotImplementedError(
            f"tf.IndexedSlices cannot be reduced with op={op}; use Sum or Average, "
            "or densify with tf.convert_to_tensor"
        )
    if process_set.size() == 1:
        return slices
    check_dtype(slices.values, REDUCIBLE, "allreduce")
    in_jit = _xla.inside_jit()
    if in_jit and not gathers_in_jit(slices, process_set.size()):
        return _allreduce_table(slices, op, name, process_set)
    number = process_set.process_set_id
    # The message of a mismatch shows the name.
    name += " (jit_compile=True needs as many rows on all ranks)" if in_jit else ""
    values = _ops.allgather(slices.values, name + ".values", number)
    indices = _ops.allgather(tf.convert_to_tensor(slices.indices), name + ".indices", number)
    if op == Average:
        values = values / tf.cast(process_set.size(), values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)


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
    process_set: ProcessSet = _runtime.global_process_set,
    ignore_name_scope: bool = False,
):
    """Reduces a tensor over all ranks; every rank gets the result.

    Args:
      tensor: tf.Tensor, tf.Variable, numpy array or number, of the same shape on all ranks, of
        float16, bfloat16, float32, float64, uint8, int8, int32 or int64; or tf.IndexedSlices, whose
        rows may differ. (Inside jit_compile=True the result has all ranks' rows, of which each
        must have as many, or every row of the table where that is smaller.)
      average: old name: True is op=Average, False is op=Sum.
      device_dense: accepted for old scripts; the collective runs on the CPU.
      device_sparse: as device_dense.
      compression: Compression.none, .fp16, .bf16, .int8 or .topk(ratio).
      op: Average (the default), Sum, Adasum, Min, Max or Product. 16-bit floats are summed in
        float32; averages of integers are truncated towards zero.
      prescale_factor: multiplies the input. Integers are multiplied as float64 and truncated.
      postscale_factor: multiplies the result, likewise.
      name: for messages; must be the same on all ranks.
      process_set: the ranks that take part; this rank must be one of them.
      ignore_name_scope: accepted for old scripts.

    Returns:
      A tensor of the input's shape and dtype, bitwise the same on every rank.

    Raises:
      ValueError: before init(), arguments contradict each other, or this rank is not in the set.
      TypeError: a dtype that cannot be reduced.
      tf.errors.FailedPreconditionError: the ranks do not agree.
      tf.errors.UnknownError: a rank died.
      tf.errors.DeadlineExceededError: a rank did not come in SMDDP_TIMEOUT_SECONDS.
    """
    del device_dense, device_sparse, ignore_name_scope
    _runtime.check_process_set(process_set)
    op = resolve_op(average, op)
    given_name, name = name, name or _order.site_name("allreduce")
    if isinstance(tensor, tf.IndexedSlices):
        if prescale_factor != 1.0 or postscale_factor != 1.0:
            raise NotImplementedError("tf.IndexedSlices cannot be scaled by pre- or postscale")
        return allreduce_slices(tensor, op, name, process_set)
    tensor = tf.convert_to_tensor(tensor)
    check_dtype(tensor, REDUCIBLE, "allreduce")
    if goes_by_itself(op, compression):
        result = scaled(tensor, factor(prescale_factor))
        if process_set.size() > 1:
            result = reduce_by_itself(result, op, compression, name, given_name, process_set)
        return scaled(result, factor(postscale_factor))
    packed, context = compression.compress(tensor)
    scales = factor(prescale_factor), factor(postscale_factor)
    result = _reduce_dense([packed], op, *scales, name, process_set)[0]
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
    process_set: ProcessSet = _runtime.global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
):
    """Reduces a list of tensors together: one op for each dtype among them.

    Args and errors are those of allreduce(); tensors is a list (or tuple) and may be empty, and
    tf.IndexedSlices may be among them.

    Returns:
      A list of tensors, in the order of the input.
    """
    del device_dense, device_sparse, ignore_name_scope
    _runtime.check_process_set(process_set)
    op = resolve_op(average, op)
    given_name, name = name, name or _order.site_name("grouped_allreduce")
    tensors = list(tensors)
    if goes_by_itself(op, compression):
        return [
            allreduce(
                tensor,
                op=op,
                compression=compression,
                prescale_factor=prescale_factor,
                postscale_factor=postscale_factor,
                name=f"{given_name}.{i}" if given_name else None,
                process_set=process_set,
            )
            for i, tensor in enumerate(tensors)
        ]
    results: list = [None] * len(tensors)
    dense = [i for i, one in enumerate(tensors) if not isinstance(one, tf.IndexedSlices)]
    for i in sorted(set(range(len(tensors))) - set(dense)):
        if prescale_factor != 1.0 or postscale_factor != 1.0:
            raise NotImplementedError("tf.IndexedSlices cannot be scaled by pre- or postscale")
        results[i] = allreduce_slices(tensors[i], op, f"{name}.{i}", process_set)
    packed = []
    for i in dense:
        tensor = tf.convert_to_tensor(tensors[i])
        check_dtype(tensor, REDUCIBLE, "allreduce")
        packed.append(compression.compress(tensor))
    reduced = _reduce_dense(
        [tensor for tensor, _ in packed],
        op,
        factor(prescale_factor),
        factor(postscale_factor),
        name,
        process_set,
    )
    for i, result, (_, context) in zip(dense, reduced, packed, strict=True):
        results[i] = compression.decompress(result, context)
    return results


def allgather(
    tensor: TensorLike,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = _runtime.global_process_set,
):
    """Joins the ranks' tensors along their first dimension, in rank order.

    Args:
      tensor: any shape; all dimensions but the first are equal on all ranks. A scalar counts as
        one row. bool, int16 and uint16 are taken besides allreduce's dtypes.
      name: for messages; must be the same on all ranks.
      ignore_name_scope: accepted for old scripts.
      process_set: the ranks that take part; this rank must be one of them.

    Returns:
      A tensor whose first dimension is the sum of the ranks'.

    Raises:
      TypeError, tf.errors.FailedPreconditionError and others: as allreduce().
    """
    del ignore_name_scope
    _runtime.check_process_set(process_set)
    tensor = tf.convert_to_tensor(tensor)
    check_dtype(tensor, MOVABLE, "allgather")
    if process_set.size() == 1:
        return tf.reshape(tensor, [1]) if tensor.shape.rank == 0 else tf.identity(tensor)
    return _ops.allgather(tensor, name or _order.site_name("allgather"), process_set.process_set_id)


def broadcast(
    tensor: TensorLike,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = _runtime.global_process_set,
):
    """Gives every rank the root's tensor.

    Args:
      tensor: of the same shape and dtype on all ranks; dtypes as allgather().
      root_rank: the rank whose value all get: its number in the job, not in the set.
      name: for messages; must be the same on all ranks.
      ignore_name_scope: accepted for old scripts.
      process_set: the ranks that take part; this rank must be one of them.

    Returns:
      A tensor of the input's shape and dtype.

    Raises:
      ValueError: root_rank is not in the set.
      TypeError, tf.errors.FailedPreconditionError and others: as allreduce().
    """
    del ignore_name_scope
    _runtime.check_process_set(process_set)
    root_rank = check_root(root_rank, process_set)
    tensor = tf.convert_to_tensor(tensor)
    check_dtype(tensor, MOVABLE, "broadcast")
    if process_set.size() == 1:
        return tf.identity(tensor)
    name = name or _order.site_name("broadcast")
    return _ops.broadcast([tensor], root_rank, name, process_set.process_set_id)[0]


def barrier(process_set: ProcessSet = _runtime.global_process_set, name: str | None = None):
    """Returns when every rank of the set has called it."""
    number = _runtime.check_process_set(process_set)
    if process_set.size() == 1:
        return None
    return _ops.barrier(name or _order.site_name("barrier"), number)
