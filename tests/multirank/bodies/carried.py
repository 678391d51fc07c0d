"""What ranks do in test_carried.py: dtypes that the engine does not have, in every collective."""

import numpy as np
import tensorflow as tf
from checks import WAYS, raises, total
from harness import rank, report, size

import smddp_tf.keras as hvd

keras = tf.keras
COMPLEX = ("complex64", "complex128")
BITS = ("uint32", "uint64")
SENT = (*COMPLEX, *BITS, "int4", "uint4", "float8_e4m3fn", "float8_e5m2", "qint8", "qint32")


def _same(got, want, dtype, *what):
    """Fails unless numbers and dtype are equal."""
    assert got.dtype == dtype, (rank, what, got.dtype, dtype)
    want = np.asarray(want).tolist()
    assert got.numpy().tolist() == want, (rank, dtype, what, got.numpy(), want)


def _numbers(rows, dtype):
    """Of a list of numbers below 8; those of 32 bits and more have their highest bit set."""
    if dtype.startswith("q"):
        return tf.bitcast(tf.constant(rows, dtype[1:]), dtype)
    if dtype in COMPLEX:
        return tf.constant(np.array(rows) * (1 - 3j), dtype)
    if dtype in BITS:
        high = np.array(np.iinfo(dtype).max // 2 + 1, dtype)
        return tf.constant(np.add(np.array(rows, dtype), high, dtype=dtype))
    return tf.cast(tf.constant(rows, tf.int32 if "int" in dtype else tf.float16), dtype)


def _ways(dtype):
    """XLA has no quantized or 4-bit tensors on the CPU."""
    if dtype in BITS:
        return WAYS
    return {way: wrap for way, wrap in WAYS.items() if way != "jit" or dtype[0] not in "qiu"}


def movement():
    """Allgather, broadcast and alltoall of each dtype, with rows that differ by rank."""
    for dtype in SENT:
        for way, wrap in _ways(dtype).items():
            own = _numbers([[rank, 1], [2, rank]], dtype)
            every = _numbers([row for r in range(size) for row in ([r, 1], [2, r])], dtype)
            _same(wrap(lambda v=own: hvd.allgather(v))(), every.numpy(), dtype, way)
            root = _numbers([[size - 1, 1], [2, size - 1]], dtype).numpy()
            _same(wrap(lambda v=own: hvd.broadcast(v, size - 1))(), root, dtype, way)
            for_each = _numbers([rank + p for p in range(size)], dtype)
            came = _numbers([rank + r for r in range(size)], dtype).numpy()
            _same(wrap(lambda v=for_each: hvd.alltoall(v))(), came, dtype, way)
            one = _numbers(rank, dtype)
            every = _numbers(list(range(size)), dtype).numpy()
            _same(wrap(lambda v=one: hvd.allgather(v))(), every, dtype, way, "scalar")
            if way == "jit" or dtype.startswith("q"):
                continue
            rows = _numbers([rank] * (rank + 1), dtype)
            every = _numbers([r for r in range(size) for _ in range(r + 1)], dtype).numpy()
            _same(wrap(lambda v=rows: hvd.allgather(v))(), every, dtype, way, "unequal")
            got, sizes = wrap(
                lambda v=rows: hvd.alltoall(v, splits=[0] * (size - 1) + [rank + 1])
            )()
            _same(got, every if rank == size - 1 else every[:0], dtype, way, "splits")
            assert sizes.shape == (size,)
    any_rank = tf.function(hvd.allgather, input_signature=[tf.TensorSpec(None, tf.complex64)])
    for shape in ([], [1], [1, 2]):
        got = any_rank(tf.fill(shape, tf.constant(1j, tf.complex64)))
        assert got.shape == [size, *shape[1:]], (shape, got.shape)
    expected = {d: _numbers([size - 1], d).numpy().tolist() for d in (*COMPLEX, *BITS)}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        values = [
            tf.compat.v1.get_variable(f"of_{dtype}", initializer=_numbers([rank], dtype))
            for dtype in expected
        ]
        start = hvd.broadcast_global_variables(size - 1)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(start)
        found = [value.tolist() for value in session.run(values)]
    assert found == list(expected.values()), (found, expected)
    report()


def _reductions(dtype, wrap):
    """(what, result, expected) of each way to reduce a rank's (r + 1) (1 - 3j)."""
    one = _numbers([1, 2, 4], dtype)
    own, real = one * tf.cast(rank + 1, dtype), tf.constant([float(rank)])
    mean = one.numpy() * (total / size)
    yield "average", wrap(lambda: hvd.allreduce(own))(), mean
    half = {"op": hvd.Sum, "prescale_factor": 0.5}
    yield "sum", wrap(lambda: hvd.allreduce(own, **half))(), one.numpy() * total / 2
    scalar = wrap(lambda: hvd.allreduce(own[0], op=hvd.Sum))()
    yield "scalar", scalar, one.numpy()[0] * total
    few = {"compression": hvd.Compression.fp16}
    yield "fp16", wrap(lambda: hvd.allreduce(own, **few))(), mean
    yield "adasum", wrap(lambda: hvd.allreduce(one, op=hvd.Adasum))(), one.numpy()
    apart = _numbers([int(place == rank) for place in range(size)], dtype)
    sums = _numbers([1] * size, dtype).numpy()  # of what is orthogonal
    yield "adasum, apart", wrap(lambda: hvd.allreduce(apart, op=hvd.Adasum))(), sums
    all_of = {"compression": hvd.Compression.topk(1.0)}
    yield "topk", wrap(lambda: hvd.allreduce(own, name="all of them", **all_of))(), mean
    group = wrap(lambda: hvd.grouped_allreduce([real, own, own[:1]], op=hvd.Sum))()
    assert group[0].numpy() == total - size
    yield "grouped", group[1], one.numpy() * total
    yield "grouped", group[2], one.numpy()[:1] * total
    rows = tf.repeat(own[tf.newaxis], 2 * size, 0)
    yield "scatter", wrap(lambda: hvd.reducescatter(rows))(), np.stack([mean] * 2)

    def gradient():
        with tf.GradientTape() as tape:
            tape.watch(own)
            y = hvd.allreduce(own, op=hvd.Sum)
            loss = tf.reduce_sum(tf.math.real(y * tf.math.conj(one)))
        return tape.gradient(loss, own)

    yield "gradient", wrap(gradient)(), one.numpy() * size


def reductions():
    """Sums and averages of complex tensors; they share an operation with others."""
    for dtype in COMPLEX:
        for way, wrap in WAYS.items():
            for what, got, want in _reductions(dtype, wrap):
                _same(got, want, dtype, way, what)

            def slices(dtype=dtype):
                rows = _numbers([[1, 2]], dtype) * tf.cast(rank + 1, dtype)
                given = tf.IndexedSlices(rows, [rank], tf.constant([size, 2]))
                return tf.convert_to_tensor(hvd.allreduce(given, op=hvd.Sum))

            want = _numbers([[r + 1, 2 * r + 2] for r in range(size)], dtype).numpy()
            _same(wrap(slices)(), want, dtype, way, "slices")
    report()


def _parameters():
    start = tf.constant([[1 + 1j, 0.5], [2j, -1]], tf.complex64)
    return [tf.Variable(start, name="w"), tf.Variable([0.5, 1.5], name="b")]


def _loss(parameters, x, y):
    w, b = parameters
    found = tf.matmul(x, w) + tf.cast(b, tf.complex64)
    return tf.reduce_mean(tf.math.abs(found - y) ** 2)


def _batches(ranks):
    """Of 4 steps, for each of these ranks 2 samples."""
    rng = np.random.RandomState(7)
    x, y = (rng.randn(4, 2 * size, 2) + 1j * rng.randn(4, 2 * size, 2) for _ in range(2))
    own = [row for r in ranks for row in (2 * r, 2 * r + 1)]
    return [
        (tf.constant(a[own], tf.complex64), tf.constant(b[own], tf.complex64))
        for a, b in zip(x, y, strict=True)
    ]


def _train(step, batches):
    for x, y in batches:
        step(x, y)


def _by_tape(parameters, wrap, distributed):
    @wrap
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = _loss(parameters, x, y)
        if distributed:
            tape = hvd.DistributedGradientTape(tape)
        for one, grad in zip(parameters, tape.gradient(loss, parameters), strict=True):
            one.assign_sub(tf.cast(0.1, grad.dtype) * grad)

    return step


def _by_optimizer(parameters, wrap, distributed, **options):
    optimizer = keras.optimizers.SGD(0.1)
    if distributed:
        optimizer = hvd.DistributedOptimizer(optimizer, **options)
    optimizer.build(parameters)

    @wrap
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = _loss(parameters, x, y)
        optimizer.apply_gradients(zip(tape.gradient(loss, parameters), parameters, strict=True))

    return step


def _compare(make, *what, **options):
    for way, wrap in WAYS.items():
        alone, together = _parameters(), _parameters()
        _train(make(alone, wrap, False), _batches(range(size)))
        _train(make(together, wrap, True, **options), _batches([rank]))
        worst = max(np.abs(a - b).max() for a, b in zip(alone, together, strict=True))
        assert worst < 2e-6, (what, way, options, worst)
        moved = np.abs(together[0] - _parameters()[0]).max()
        assert moved > 0.1, (what, way, options, moved)


def training():
    """A tape's gradients of complex variables, and of real ones beside them, are the average."""
    _compare(_by_tape, "tape")
    report()


def optimizers():
    """Keras 2's SGD takes complex variables; it trains as one process does, also divided."""
    _compare(_by_optimizer, "optimizer")
    _compare(_by_optimizer, "divided", shard_state=True)
    report()


def mistakes():
    """What the engine takes for equal is not; what has no meaning is refused."""
    mixed = tf.complex64 if rank == 0 else tf.float32
    words = tf.errors.FailedPreconditionError, "of complex64"
    for call in (
        lambda: hvd.broadcast(tf.zeros([3] if rank == 0 else [3, 2], mixed), 0),
        lambda: hvd.allgather(tf.zeros([3] if rank == 0 else [3, 2], mixed)),
        lambda: hvd.alltoall(tf.zeros([size] if rank == 0 else [size, 2], mixed)),
    ):
        with raises(*words):
            call()
    with raises(tf.errors.FailedPreconditionError, "complex places [0]"):
        hvd.allreduce(tf.zeros([3] if rank == 0 else [3, 2], mixed))
    bits = tf.zeros([2], "uint32" if rank == 0 else "int32")
    with raises(tf.errors.FailedPreconditionError, "of uint32"):
        hvd.broadcast(bits, 0)
    with raises(tf.errors.FailedPreconditionError, "place 0 of uint32"):
        hvd.broadcast_variables([tf.Variable(bits)], 0)
    with raises(tf.errors.FailedPreconditionError, "w float32 [2, 2] parts of complex64"):
        w = tf.Variable(tf.zeros([2] if rank == 0 else [2, 2], mixed), name="w")
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(tf.abs(w))
        tape.gradient(loss, w)
    wave = tf.constant([1j] * size, tf.complex64)
    for op in (hvd.Min, hvd.Max, hvd.Product):
        for call in (hvd.allreduce, hvd.reducescatter):
            with raises(TypeError, "complex64", f"not {op}"):
                call(wave, op=op)
    with raises(ValueError, "alltoall of complex64", "number of dimensions"):
        hvd.alltoall(wave[0])
    report()
