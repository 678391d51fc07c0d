"""What ranks do in test_adasum_compression.py."""

import gc
import warnings

import numpy as np
import tensorflow as tf
from checks import WAYS, checked, equal, raises, refused, total
from harness import rank, report, size

import smddp_tf as hvd
import smddp_tf.keras as hvd_keras

C = hvd.Compression
keras = tf.keras


def _tree(parts):
    """Adasum of all ranks' parts."""
    parts = [np.asarray(p, np.float64) for p in parts]
    while len(parts) > 1:
        joined = []
        for a, b in zip(parts[::2], parts[1::2], strict=False):
            dot, aa, bb = (a * b).sum(), (a * a).sum(), (b * b).sum()
            scales = (1 - dot / (2 * n) if n else 1 for n in (aa, bb))
            joined.append(sum(scale * part for scale, part in zip(scales, (a, b), strict=True)))
        parts = joined + parts[2 * len(joined) :]
    return parts[0]


def _same(tensor):
    assert len(set(hvd.allgather_object(tensor.numpy().tobytes()))) == 1


def _adasum_in(way, wrap, random):
    def adasum(x):
        return wrap(lambda: hvd.allreduce(x, op=hvd.Adasum))()

    # Orthogonal gradients add.
    equal(adasum(tf.one_hot(rank, size) * (rank + 1.0)), np.arange(1, size + 1), way, "orthogonal")
    # Parallel ones of equal size average; so do those of one rank with zeros elsewhere add.
    equal(adasum(tf.constant([3.0, 4.0])), [3.0, 4.0], way, "parallel")
    equal(adasum(tf.constant([3.0, 4.0]) * (rank == size - 1)), [3.0, 4.0], way, "zeros")
    equal(adasum(tf.zeros([3])), 0, way, "all zeros")
    got = adasum(tf.constant(random[rank], tf.float32))
    _same(got)
    # float32 products of numbers of about 3, summed in float64: 2^-23 * 3, a few times.
    assert np.allclose(got, _tree(random), atol=2e-6), way
    # 16 bits: squares of 3e4 would overflow float16; the result is rounded once.
    half = (random[:, :50] * 1e4).astype(np.float16)
    got = adasum(tf.constant(half[rank]))
    assert got.dtype == tf.float16
    _same(got)
    assert np.allclose(got, _tree(half), rtol=2**-10, atol=1), way
    tensors = [tf.one_hot(rank, size), tf.constant(2.0)]
    grouped = wrap(lambda: hvd.grouped_allreduce(tensors, op=hvd.Adasum))()
    equal(grouped[0], 1, way)
    equal(grouped[1], 2, way)


def adasum():
    random = np.random.RandomState(5).randn(size, 1001)
    for way, wrap in WAYS.items():
        _adasum_in(way, wrap, random)
    v = tf.Variable(tf.zeros([size]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(v * tf.one_hot(rank, size))
    tape = hvd.DistributedGradientTape(tape, op=hvd.Adasum)
    equal(tape.gradient(loss, v), 1, "tape")
    slices = tf.IndexedSlices(tf.ones([1]), tf.constant([0]))
    for error, call in (
        (TypeError, lambda: hvd.allreduce(tf.constant([1]), op=hvd.Adasum)),
        (ValueError, lambda: hvd.reducescatter(tf.ones([4]), op=hvd.Adasum)),
        (NotImplementedError, lambda: hvd.allreduce(slices, op=hvd.Adasum)),
    ):
        with raises(error):
            call()
    with raises(tf.errors.FailedPreconditionError):
        hvd.allreduce(tf.ones([2]), op=hvd.Adasum if rank else hvd.Sum)
    report(checks=checked())


def _check_bounds(data, exact):
    rounding = 1e-6

    def error_of(compression, way):
        x, wrap = tf.constant(data[rank]), WAYS[way]
        options = {"op": hvd.Sum, "compression": compression, "name": "x"}
        got = wrap(lambda: hvd.allreduce(x, **options))()
        _same(got)
        return np.abs(got.numpy().astype(np.float64) - exact)

    largest = np.abs(np.pad(data, [[0, 0], [0, 24]])).reshape(size, 4, 256).max(2)
    int8_bound = np.repeat(largest.sum(0) / 254, 256)[:1000]
    for way in WAYS:
        for compression, bits in ((C.fp16, 11), (C.bf16, 8)):
            bound = 2.0**-bits * (np.abs(data).sum(0) + np.abs(exact)) + 2.0**-24
            assert (error_of(compression, way) <= bound + rounding).all(), (way, bits)
        error = error_of(C.int8, way)
        assert (error <= int8_bound * 1.001 + rounding).all() and error.max() > 0, (
            way,
            error.max(),
        )
    average = hvd.allreduce(tf.constant(data[rank]), compression=C.int8)
    assert (np.abs(average - exact / size) <= int8_bound / size * 1.001 + rounding).all()
    zeros = hvd.allreduce(tf.zeros([3, 5]), compression=C.int8)
    assert zeros.shape == [3, 5] and not np.any(zeros)
    equal(hvd.allreduce(tf.constant([rank + 1]), op=hvd.Sum, compression=C.int8), total, "integers")


def _check_what_is_not_finite():
    """One rank's inf or nan is what all ranks get: in its chunk, and at its place."""
    for way, wrap in WAYS.items():
        topk = C.topk(0.002)  # one element
        quantized = wrap(lambda x: hvd.allreduce(x, op=hvd.Sum, compression=C.int8))
        selected = wrap(
            lambda x, topk=topk: hvd.allreduce(x, op=hvd.Sum, compression=topk, name="x")
        )
        for wrong in (np.inf, -np.inf, np.nan):
            data = np.ones(600, np.float32) * (rank + 1)
            if rank == 1:
                data[300] = wrong
            got = quantized(tf.constant(data)).numpy()
            assert np.isnan(got[256:512]).all(), (way, wrong, got)
            assert np.allclose(np.delete(got, slice(256, 512)), total, rtol=1e-6), (way, wrong, got)
            got = selected(tf.constant(data)).numpy()
            assert np.array_equal(got[300], wrong, equal_nan=True), (way, wrong, got[300])
        assert np.isfinite(topk.kept["x"]).all(), way
        # More of them than are sent: the step leaves nothing behind, on any rank.
        kept = topk.kept["x"].numpy()
        overflowed = np.full(600, np.inf if rank == 1 else 1.0, np.float32)
        assert not np.isfinite(selected(tf.constant(overflowed))).all(), way
        assert np.array_equal(topk.kept["x"], kept), way
        assert np.isfinite(selected(tf.ones([600]))).all(), way


def _check_topk(data, exact):
    """What was sent and what is kept is everything, always."""
    topk = C.topk(0.01)
    step = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, compression=topk, name="x"))
    sent = np.zeros(1000)
    for i in range(30):
        got = step(tf.constant(data[rank] * (i + 1))).numpy()
        assert np.count_nonzero(got) <= 10 * size
        sent += got
    kept = hvd.allreduce(tf.identity(topk.kept["x"]), op=hvd.Sum).numpy()
    assert np.allclose(sent + kept, exact * sum(range(1, 31)), rtol=1e-5, atol=2e-3)
    assert np.abs(kept).max() > 0
    with raises(ValueError, "name"):
        hvd.allreduce(tf.ones([3]), compression=topk)


def _check_lost_residuals():
    """An object for each step would send the largest elements only, for ever."""
    v, one = tf.Variable(tf.zeros([4])), C.topk(0.25)
    for make, expected in ((lambda: one, False), (lambda: C.topk(0.25), True)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(5):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(v * [1.0, 2.0, 3.0, 4.0])
                hvd.DistributedGradientTape(tape, compression=make()).gradient(loss, v)
                del tape
                gc.collect()
        told = [str(w.message) for w in caught if w.category is RuntimeWarning]
        assert any("made anew in each step" in text for text in told) is expected, told


def _check_refusals():
    with raises(ValueError):
        hvd.allreduce(tf.ones([3]), compression=C.int8, op=hvd.Max)
    with raises(ValueError):
        C.topk(0)
    sgd = keras.optimizers.SGD
    calls = (
        lambda c: hvd.allreduce(tf.ones([3]), compression=c),
        lambda c: hvd.grouped_allreduce([tf.ones([3])], compression=c),
        lambda c: hvd.DistributedGradientTape(tf.GradientTape(), compression=c),
        lambda c: hvd_keras.DistributedOptimizer(sgd(), compression=c),
    )
    for wrong in (C.topk, "fp16", None):
        for call in calls:
            refused(lambda call=call, wrong=wrong: call(wrong), "topk(")


def _train(compression):
    """The largest error of a weight of a linear model, from the same start."""
    keras.utils.set_random_seed(1)
    x = np.random.RandomState(rank).randn(1280, 20).astype("float32")
    y = x @ np.arange(20, dtype="float32")[:, None]
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.05)
    model.compile(hvd_keras.DistributedOptimizer(optimizer, compression=compression), "mse")
    broadcast = hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(x, y, batch_size=32, epochs=6, verbose=0, callbacks=[broadcast])
    weights = model.get_weights()
    assert len(set(hvd.allgather_object(weights[0].tobytes()))) == 1
    return np.abs(weights[0].ravel() - np.arange(20)).max()


class Halving:
    """A compressor of one's own: halves before, doubles after."""

    @staticmethod
    def compress(tensor):
        return tensor / 2, None

    @staticmethod
    def decompress(tensor, context):
        return tensor * 2


def compression():
    data = np.random.RandomState(3).randn(size, 1000).astype(np.float32)
    data[:, 300:] *= 1e-3  # chunks of other scales
    exact = data.astype(np.float64).sum(0)
    _check_bounds(data, exact)
    _check_topk(data, exact)
    _check_what_is_not_finite()
    _check_lost_residuals()
    _check_refusals()
    for compression in (C.none, C.int8, C.topk(0.2)):
        assert _train(compression) < 0.2, compression
    got = hvd.allreduce(tf.ones([2]) * (rank + 1), op=hvd.Sum, compression=Halving)
    equal(got, total)
    report(checks=checked(), collective_bytes=hvd.stats()["collective_bytes"])


def between_nodes():
    equal(hvd.allreduce(tf.one_hot(rank, size), op=hvd.Adasum), 1)
    x = tf.ones([600]) * (rank + 1)
    for compression in (C.int8, C.topk(1.0)):
        got = hvd.allreduce(x, op=hvd.Sum, compression=compression, name="x")
        assert np.allclose(got, total, rtol=1e-6), got
    report(checks=checked())


def _loss_scaled_steps(jit):
    """Nine steps, of which one overflows, change the scale four times. jit=None: no tf.function."""
    topk, scales = C.topk(0.01), []
    v = keras.Variable(np.zeros(1000, np.float32))
    inner = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(1.0), compression=topk)
    optimizer = keras.optimizers.LossScaleOptimizer(inner, 1024.0, dynamic_growth_steps=2)
    optimizer.build([v])

    def step(grad):
        optimizer.apply([grad], [v])

    step = step if jit is None else tf.function(step, jit_compile=jit)
    gradient = np.arange(1, 1001, dtype=np.float32)
    for i in range(9):
        scales.append(float(optimizer.dynamic_scale.numpy()))
        overflow = np.inf if i == 4 and rank == 0 else 1
        step(tf.constant(gradient * scales[-1] * overflow))
    assert scales == [1024, 1024, 2048, 2048, 4096, 2048, 2048, 4096, 4096]
    (kept,) = topk.kept.values()
    kept = hvd.allreduce(kept, op=hvd.Average, name=f"kept, jit {jit}").numpy()
    # Whole numbers times powers of 2: exact.
    scale = optimizer.dynamic_scale.numpy()
    np.testing.assert_array_equal(kept / scale - v.numpy(), 8 * gradient)


def topk_under_loss_scaling():
    """What was kept follows the loss scale, so that sent and kept are the gradients' sum."""
    for jit in (None, False, True):
        _loss_scaled_steps(jit)
    report(done=True)
