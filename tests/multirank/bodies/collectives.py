"""What ranks do in test_collectives.py."""

import numpy as np
import tensorflow as tf
from checks import DTYPES, WAYS, checked, equal, raises, total
from harness import rank, report, size

import smddp_tf as hvd

BASE = np.arange(5) % 3 + 1


def _average(dtype):
    """Summed, then divided (integers) or scaled in the accumulator's type, and rounded once."""
    if dtype.is_integer:
        return BASE * total // size
    wide = np.float64 if dtype == tf.float64 else np.float32
    return tf.cast(wide(BASE * total) * wide(1 / size), dtype)


def _expected(dtype):
    product = BASE**size * np.prod(np.arange(1, size + 1))
    if dtype.is_integer:
        product = product.astype(dtype.as_numpy_dtype)  # wraps
    return {
        hvd.Sum: BASE * total,
        hvd.Min: BASE,
        hvd.Max: BASE * size,
        hvd.Product: product,
        hvd.Average: _average(dtype),
    }


def _all_ops(way, wrap):
    for dtype in DTYPES:
        x = tf.cast(BASE * (rank + 1), dtype)
        wanted = _expected(dtype)
        results = wrap(lambda x=x, ops=tuple(wanted): [hvd.allreduce(x, op=op) for op in ops])()
        for got, (op, want) in zip(results, wanted.items(), strict=True):
            assert got.dtype == dtype
            equal(got, tf.cast(want, tf.float64), way, dtype, op)


def _sizes_and_scales(way, wrap):
    """One function for all: compiling it is what takes time."""
    ones = [tf.ones([n]) * (rank + 1) for n in (0, 1, size - 1, size + 1, 100001)]
    scalar = tf.constant(float(rank))
    scales = {"prescale_factor": 0.5, "postscale_factor": 4.0}

    def reduce():
        sums = [hvd.allreduce(x, op=hvd.Sum) for x in [*ones, scalar]]
        return [*sums, hvd.allreduce(tf.ones([3]), op=hvd.Sum, **scales)]

    wanted = [*[total for _ in ones], total - size, 2.0 * size]
    for got, want in zip(wrap(reduce)(), wanted, strict=True):
        equal(got, want, way, got.shape)


def _scaled_integers(way, wrap):
    """Horovod's numbers: each integer is scaled by itself and truncated, as are the ops' floats."""
    before, after = float(np.float32(0.7)), float(np.float32(1.3))
    scales = {"prescale_factor": 0.7, "postscale_factor": 1.3}
    parts = [[int(before * one) for one in (3 + r, 10, 11)] for r in range(size)]
    ops = {hvd.Sum: sum, hvd.Average: sum, hvd.Max: max}
    tensors = [tf.cast([3 + rank, 10, 11], t) for t in (tf.uint8, tf.int8, tf.int32, tf.int64)]

    def reduce():
        return [[hvd.allreduce(x, op=op, **scales) for op in ops] for x in tensors]

    for x, results in zip(tensors, wrap(reduce)(), strict=True):
        for got, (op, combine) in zip(results, ops.items(), strict=True):
            last = after / size if op == hvd.Average else after
            want = [int(last * combine(column)) for column in zip(*parts, strict=True)]
            assert got.dtype == x.dtype
            equal(got, want, way, x.dtype, op)


def _grouped(way, wrap):
    tensors = [tf.ones([2]) * (rank + 1), tf.constant(rank + 1), tf.ones([3], tf.bfloat16)]
    mixed = wrap(lambda: hvd.grouped_allreduce(tensors, op=hvd.Sum))()
    for got, want in zip(mixed, (total, total, size), strict=True):
        equal(got, want, way, "grouped")


def allreduce():
    for way, wrap in WAYS.items():
        _all_ops(way, wrap)
        _sizes_and_scales(way, wrap)
        _scaled_integers(way, wrap)
        _grouped(way, wrap)
    # 2048 + 1 + ... in float16 loses the ones; summed in float32 it does not.
    big = tf.constant([2048.0 if rank == 0 else 1.0], tf.float16)
    equal(hvd.allreduce(big, op=hvd.Sum), np.float16(2048 + size - 1))
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        y = hvd.allreduce(tf.ones([4]) * (rank + 1), op=hvd.Sum, compression=compression)
        assert y.dtype == tf.float32
        equal(y, total, compression)
    report(checks=checked())


def _broadcasts_and_gradients(way, wrap):
    for root in (0, size - 1):
        x = tf.fill([7], rank)
        equal(wrap(lambda x=x, root=root: hvd.broadcast(x, root))(), root, way)
    x = tf.constant([1.0, 2.0]) * (rank + 1)

    def reduce_gradient():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(hvd.allreduce(x, op=hvd.Sum) * (rank + 1.0))
        return tape.gradient(y, x)

    equal(wrap(reduce_gradient)(), total, way, "gradient of allreduce")

    def broadcast_gradient():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(hvd.broadcast(x, 1) * (rank + 1.0))
        return tape.gradient(y, x)

    want = total / size if rank == 1 else 0
    equal(wrap(broadcast_gradient)(), want, way, "averaged, as in Horovod")


def _allgather():
    rows = hvd.allgather(tf.fill([rank, 2], rank))
    equal(rows, np.repeat(np.arange(size), np.arange(size))[:, None] * np.ones(2), "allgather")
    equal(hvd.allgather(tf.constant(rank)), np.arange(size), "scalars")
    equal(hvd.allgather(tf.constant([rank == 0])), np.arange(size) == 0, "bool")
    z = tf.Variable(tf.ones([rank + 1, 2]))
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(hvd.allgather(z) * (rank + 1.0))
    equal(tape.gradient(y, z), total / size, "averaged, as in Horovod")


def _of_unknown_rank():
    """As what numpy_function() and py_function() return."""

    @tf.function
    def collectives():
        x = tf.numpy_function(lambda: np.full([2 * size], rank + 1, np.float32), [], tf.float32)
        assert x.shape.rank is None
        sums = hvd.allreduce(x, op=hvd.Sum), hvd.reducescatter(x, op=hvd.Sum)
        adasum = hvd.allreduce(x * 0 + 1, op=hvd.Adasum)  # of equal vectors, that vector
        rows = hvd.allgather(x), hvd.alltoall(x), hvd.broadcast(x, 1)
        return *sums, adasum, *[row[0] if isinstance(row, tuple) else row for row in rows]

    every = np.repeat(np.arange(1, size + 1), 2)
    wanted = ([total] * 2 * size, [total] * 2, [1] * 2 * size, np.repeat(every, size), every)
    for got, want in zip(collectives(), (*wanted, [2] * 2 * size), strict=True):
        equal(got, want, "unknown rank")
        assert got.shape == np.shape(want)

    with raises((ValueError, tf.errors.InvalidArgumentError), "reducescatter"):
        scalar = tf.function(lambda: hvd.reducescatter(tf.numpy_function(float, [], tf.double)))
        scalar()


def _gradient_of_unknown_rank():
    """A scalar is one row of an allgather, also where only the value tells that it is one."""

    @tf.function(input_signature=[tf.TensorSpec(None)])
    def gathered(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            rows = hvd.allgather(x)
            loss = tf.reduce_sum(rows * rows)
        return rows, tape.gradient(loss, x)

    for own in (float(rank), [float(rank)], [[float(rank), 1.0]]):
        rows, gradient = gathered(tf.constant(own))
        assert rows.shape[0] == size, rows
        equal(gradient, 2 * np.asarray(own, "float32"), f"gradient of {own}")


def movement_and_gradients():
    _of_unknown_rank()
    _gradient_of_unknown_rank()
    for way, wrap in WAYS.items():
        _broadcasts_and_gradients(way, wrap)
    _allgather()
    variables = [tf.Variable([rank, rank]), tf.Variable(float(rank)), tf.Variable(rank == 1)]
    hvd.broadcast_variables(variables, root_rank=1)
    for variable in variables:
        equal(variable, 1, "broadcast_variables")
    variables[0].assign([rank, rank])
    tf.function(lambda: hvd.broadcast_variables(variables, 0) and None)()
    equal(variables[0], 0, "broadcast_variables in a function")
    assert hvd.broadcast_object({"root": rank}, 1) == {"root": 1}
    assert hvd.allgather_object("x" * rank) == ["x" * r for r in range(size)]
    hvd.barrier()
    report(checks=checked())


def between_nodes():
    for dtype in DTYPES:
        for n in (0, 1, size, 1000):
            x = tf.cast(tf.fill([n], rank + 1), dtype)
            equal(hvd.allreduce(x, op=hvd.Sum), total, dtype, n)
    big = tf.ones([1000003]) * (rank + 1)
    equal(hvd.allreduce(big, op=hvd.Sum), total)
    equal(hvd.broadcast(big, size - 1), size)
    rows = hvd.allgather(tf.fill([rank, 2], rank))
    equal(rows, np.repeat(np.arange(size), np.arange(size))[:, None] * np.ones(2), "allgather")
    with raises(tf.errors.FailedPreconditionError, "rank", "[2]"):
        hvd.allreduce(tf.ones([1 + (rank == size - 1)]), name="odd")
    equal(hvd.allreduce(tf.constant(1.0), op=hvd.Sum), size, "after the mismatch")
    report(cross_size=hvd.cross_size(), local_size=hvd.local_size(), checks=checked())
