"""Every collective, through mpirun: dtypes, ops and ways to run, with rank-distinct exact data."""

import pytest
from conftest import PYTHONS, on_ranks
from scripts import with_checks


@on_ranks("python", PYTHONS, 2, 3, 4)
def test_allreduce(job, python, ranks):
    """All ops of all dtypes in all ways, and some sizes; scalars and empty tensors too."""
    body = """
    base = np.arange(5) % 3 + 1
    def average(dtype):
        "Summed, then divided (integers) or scaled in the accumulator's type, and rounded once."
        if dtype.is_integer:
            return base * total // size
        wide = np.float64 if dtype == tf.float64 else np.float32
        return tf.cast(wide(base * total) * wide(1 / size), dtype)
    def expected(dtype):
        product = base ** size * np.prod(np.arange(1, size + 1))
        if dtype.is_integer:
            product = product.astype(dtype.as_numpy_dtype)  # wraps
        return {
            hvd.Sum: base * total, hvd.Min: base, hvd.Max: base * size, hvd.Product: product,
            hvd.Average: average(dtype),
        }
    for way, wrap in WAYS.items():
        for dtype in DTYPES:
            x = tf.cast(base * (rank + 1), dtype)
            wanted = expected(dtype)
            results = wrap(lambda x=x: [hvd.allreduce(x, op=op) for op in wanted])()
            for got, (op, want) in zip(results, wanted.items()):
                assert got.dtype == dtype
                equal(got, tf.cast(want, tf.float64), way, dtype, op)
        for n in (0, 1, size - 1, size + 1, 100001):
            x = tf.ones([n]) * (rank + 1)
            equal(wrap(lambda x=x: hvd.allreduce(x, op=hvd.Sum))(), total, way, n)
        scalar = tf.constant(float(rank))
        equal(wrap(lambda: hvd.allreduce(scalar, op=hvd.Sum))(), total - size, way)
        scaled = wrap(lambda: hvd.allreduce(
            tf.ones([3]), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0))()
        equal(scaled, 2.0 * size, way)
        # Horovod's numbers: each integer is scaled by itself and truncated, as are the ops' floats.
        before, after = float(np.float32(0.7)), float(np.float32(1.3))
        for dtype in (tf.uint8, tf.int8, tf.int32, tf.int64):
            x = tf.cast([3 + rank, 10, 11], dtype)
            parts = [[int(before * one) for one in (3 + r, 10, 11)] for r in range(size)]
            for op, combine in ((hvd.Sum, sum), (hvd.Average, sum), (hvd.Max, max)):
                last = after / size if op == hvd.Average else after
                want = [int(last * combine(column)) for column in zip(*parts)]
                got = wrap(lambda op=op, x=x: hvd.allreduce(
                    x, op=op, prescale_factor=0.7, postscale_factor=1.3))()
                assert got.dtype == dtype
                equal(got, want, way, dtype, op)
        mixed = wrap(lambda: hvd.grouped_allreduce(
            [tf.ones([2]) * (rank + 1), tf.constant(rank + 1), tf.ones([3], tf.bfloat16)],
            op=hvd.Sum))()
        for got, want in zip(mixed, (total, total, size)):
            equal(got, want, way, "grouped")
    # 2048 + 1 + ... in float16 loses the ones; summed in float32 it does not.
    big = tf.constant([2048.0 if rank == 0 else 1.0], tf.float16)
    equal(hvd.allreduce(big, op=hvd.Sum), np.float16(2048 + size - 1))
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        y = hvd.allreduce(tf.ones([4]) * (rank + 1), op=hvd.Sum, compression=compression)
        assert y.dtype == tf.float32
        equal(y, total, compression)
    report(checks=checks)
    """
    results = job(with_checks(body), ranks, python=python).check(ranks)
    assert len({r["checks"] for r in results.values()}) == 1
    assert results[0]["checks"] > 3 * 8 * 5


@on_ranks("python", PYTHONS, 2, 3)
def test_movement_and_gradients(job, python, ranks):
    """Broadcast, allgather, objects, variables, and the gradient of each collective."""
    body = """
    for way, wrap in WAYS.items():
        for root in (0, size - 1):
            x = tf.fill([7], rank)
            equal(wrap(lambda x=x, root=root: hvd.broadcast(x, root))(), root, way)
        x = tf.constant([1.0, 2.0]) * (rank + 1)
        def reduce_gradient(x=x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(hvd.allreduce(x, op=hvd.Sum) * (rank + 1.0))
            return tape.gradient(y, x)
        equal(wrap(reduce_gradient)(), total, way, "gradient of allreduce")
        def broadcast_gradient(x=x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(hvd.broadcast(x, 1) * (rank + 1.0))
            return tape.gradient(y, x)
        equal(wrap(broadcast_gradient)(), total / size if rank == 1 else 0, way,
              "averaged, as in Horovod")
    rows = hvd.allgather(tf.fill([rank, 2], rank))
    equal(rows, np.repeat(np.arange(size), np.arange(size))[:, None] * np.ones(2), "allgather")
    equal(hvd.allgather(tf.constant(rank)), np.arange(size), "scalars")
    equal(hvd.allgather(tf.constant([rank == 0])), np.arange(size) == 0, "bool")
    z = tf.Variable(tf.ones([rank + 1, 2]))
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(hvd.allgather(z) * (rank + 1.0))
    equal(tape.gradient(y, z), total / size, "averaged, as in Horovod")
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
    report(checks=checks)
    """
    job(with_checks(body), ranks, python=python).check(ranks)


@pytest.mark.parametrize(
    ("python", "ranks", "nodes"),
    [("tf2.21", 4, 2), ("tf2.21", 3, 3), ("tf2.21", 3, 2), ("tf2.15", 2, 2)],
    indirect=["python"],
)
def test_between_nodes(job, python, ranks, nodes):
    """The ranks are split into groups that share no memory; MPI carries the bytes."""
    body = """
    for dtype in DTYPES:
        for n in (0, 1, size, 1000):
            x = tf.cast(tf.fill([n], rank + 1), dtype)
            equal(hvd.allreduce(x, op=hvd.Sum), total, dtype, n)
    big = tf.ones([1000003]) * (rank + 1)
    equal(hvd.allreduce(big, op=hvd.Sum), total)
    equal(hvd.broadcast(big, size - 1), size)
    rows = hvd.allgather(tf.fill([rank, 2], rank))
    equal(rows, np.repeat(np.arange(size), np.arange(size))[:, None] * np.ones(2), "allgather")
    try:
        hvd.allreduce(tf.ones([1 + (rank == size - 1)]), name="odd")
        raise SystemExit("no mismatch was seen")
    except tf.errors.FailedPreconditionError as error:
        assert "rank" in error.message and "[2]" in error.message, error.message
    equal(hvd.allreduce(tf.constant(1.0), op=hvd.Sum), size, "after the mismatch")
    report(cross_size=hvd.cross_size(), local_size=hvd.local_size(), checks=checks)
    """
    env = {"SMDDP_NODES": str(nodes)}
    results = job(with_checks(body), ranks, env=env, python=python).check(ranks)
    assert all(result["cross_size"] == nodes for result in results.values())
    assert sum(result["local_size"] for result in results.values()) >= ranks
