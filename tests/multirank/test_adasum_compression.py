"""Adasum and the compressors, by their properties and against their error bounds."""

import pytest
from scripts import with_checks

ADASUM = """
def tree(parts):
    parts = [np.asarray(p, np.float64) for p in parts]
    while len(parts) > 1:
        joined = []
        for a, b in zip(parts[::2], parts[1::2]):
            dot, aa, bb = (a * b).sum(), (a * a).sum(), (b * b).sum()
            scales = (1 - dot / (2 * n) if n else 1 for n in (aa, bb))
            joined.append(sum(scale * part for scale, part in zip(scales, (a, b))))
        parts = joined + parts[2 * len(joined):]
    return parts[0]
def same(tensor):
    assert len(set(hvd.allgather_object(tensor.numpy().tobytes()))) == 1
random = np.random.RandomState(5).randn(size, 1001)
for way, wrap in WAYS.items():
    def adasum(x):
        return wrap(lambda: hvd.allreduce(x, op=hvd.Adasum))()
    # Orthogonal gradients add.
    equal(adasum(tf.one_hot(rank, size) * (rank + 1.0)), np.arange(1, size + 1), way, "orthogonal")
    # Parallel ones of equal size average; so do those of one rank with zeros elsewhere add.
    equal(adasum(tf.constant([3.0, 4.0])), [3.0, 4.0], way, "parallel")
    equal(adasum(tf.constant([3.0, 4.0]) * (rank == size - 1)), [3.0, 4.0], way, "zeros")
    equal(adasum(tf.zeros([3])), 0, way, "all zeros")
    got = adasum(tf.constant(random[rank], tf.float32))
    same(got)
    # float32 products of numbers of about 3, summed in float64: 2^-23 * 3, a few times.
    assert np.allclose(got, tree(random), atol=2e-6), way
    # 16 bits: squares of 3e4 would overflow float16; the result is rounded once.
    half = (random[:, :50] * 1e4).astype(np.float16)
    got = adasum(tf.constant(half[rank]))
    assert got.dtype == tf.float16
    same(got)
    assert np.allclose(got, tree(half), rtol=2**-10, atol=1), way
    grouped = wrap(lambda: hvd.grouped_allreduce(
        [tf.one_hot(rank, size), tf.constant(2.0)], op=hvd.Adasum))()
    equal(grouped[0], 1, way), equal(grouped[1], 2, way)
v = tf.Variable(tf.zeros([size]))
with tf.GradientTape() as tape:
    loss = tf.reduce_sum(v * tf.one_hot(rank, size))
tape = hvd.DistributedGradientTape(tape, op=hvd.Adasum)
equal(tape.gradient(loss, v), 1, "tape")
for error, call in (
    (TypeError, lambda: hvd.allreduce(tf.constant([1]), op=hvd.Adasum)),
    (ValueError, lambda: hvd.reducescatter(tf.ones([4]), op=hvd.Adasum)),
    (NotImplementedError, lambda: hvd.allreduce(
        tf.IndexedSlices(tf.ones([1]), tf.constant([0])), op=hvd.Adasum)),
):
    try:
        call()
        raise SystemExit("accepted")
    except error:
        pass
try:
    hvd.allreduce(tf.ones([2]), op=hvd.Adasum if rank else hvd.Sum)
    raise SystemExit("different ops were accepted")
except tf.errors.FailedPreconditionError:
    pass
report(checks=checks)
"""


@pytest.mark.parametrize("ranks", [3, 4])
def test_adasum(job, ranks):
    """Orthogonal gradients add, parallel ones average, any number of ranks, 16 bits."""
    job(with_checks(ADASUM), ranks).check(ranks)


COMPRESSION = """
import smddp_tf.keras as hvdk
C = hvd.Compression
data = np.random.RandomState(3).randn(size, 1000).astype(np.float32)
data[:, 300:] *= 1e-3  # chunks of other scales
exact = data.astype(np.float64).sum(0)
def result(compression, way, **options):
    wrap = WAYS[way]
    x = tf.constant(data[rank])
    got = wrap(lambda: hvd.allreduce(x, op=hvd.Sum, compression=compression, name="x", **options))()
    assert len(set(hvd.allgather_object(got.numpy().tobytes()))) == 1
    return got.numpy().astype(np.float64)
for way in WAYS:
    rounding = 1e-6
    for compression, bits in ((C.fp16, 11), (C.bf16, 8)):
        bound = 2.0**-bits * (np.abs(data).sum(0) + np.abs(exact)) + 2.0**-24
        assert (np.abs(result(compression, way) - exact) <= bound + rounding).all(), (way, bits)
    largest = np.abs(np.pad(data, [[0, 0], [0, 24]])).reshape(size, 4, 256).max(2)
    bound = np.repeat(largest.sum(0) / 254, 256)[:1000]
    error = np.abs(result(C.int8, way) - exact)
    assert (error <= bound * 1.001 + rounding).all() and error.max() > 0, (way, error.max())
average = hvd.allreduce(tf.constant(data[rank]), compression=C.int8)
assert (np.abs(average - exact / size) <= bound / size * 1.001 + rounding).all()
zeros = hvd.allreduce(tf.zeros([3, 5]), compression=C.int8)
assert zeros.shape == [3, 5] and not np.any(zeros)
equal(hvd.allreduce(tf.constant([rank + 1]), op=hvd.Sum, compression=C.int8), total, "integers")
# Top-k: what was sent and what is kept is everything, always.
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
try:
    hvd.allreduce(tf.ones([3]), compression=topk)
    raise SystemExit("top-k without a name")
except ValueError as error:
    assert "name" in str(error)
for options in ({"op": hvd.Max}, {}):
    try:
        if options:
            hvd.allreduce(tf.ones([3]), compression=C.int8, **options)
        else:
            C.topk(0)
        raise SystemExit("accepted")
    except ValueError:
        pass
for wrong in (C.topk, "fp16", None):
    for call in (lambda c: hvd.allreduce(tf.ones([3]), compression=c),
                 lambda c: hvd.grouped_allreduce([tf.ones([3])], compression=c),
                 lambda c: hvd.DistributedGradientTape(tf.GradientTape(), compression=c),
                 lambda c: hvdk.DistributedOptimizer(tf.keras.optimizers.SGD(), compression=c)):
        refused(lambda: call(wrong), "topk(")
# Training with what is sent: a linear model, from the same start, reaches the same loss.
def train(compression):
    keras = tf.keras
    keras.utils.set_random_seed(1)
    x = np.random.RandomState(rank).randn(1280, 20).astype("float32")
    y = x @ np.arange(20, dtype="float32")[:, None]
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.05)
    model.compile(hvdk.DistributedOptimizer(optimizer, compression=compression), "mse")
    model.fit(x, y, batch_size=32, epochs=6, verbose=0,
              callbacks=[hvdk.callbacks.BroadcastGlobalVariablesCallback(0)])
    weights = model.get_weights()
    assert len(set(hvd.allgather_object(weights[0].tobytes()))) == 1
    return np.abs(weights[0].ravel() - np.arange(20)).max()
for compression in (C.none, C.int8, C.topk(0.2)):
    assert train(compression) < 0.2, compression
# A compressor of one's own: halves before, doubles after.
class Halving:
    @staticmethod
    def compress(tensor):
        return tensor / 2, None
    @staticmethod
    def decompress(tensor, context):
        return tensor * 2
equal(hvd.allreduce(tf.ones([2]) * (rank + 1), op=hvd.Sum, compression=Halving), total)
report(checks=checks, **{k: hvd.stats()[k] for k in ("collective_bytes",)})
"""


def test_compression(job):
    """Every bound, in every way to run; nothing is lost by top-k; training."""
    job(with_checks(COMPRESSION), 3).check(3)


def test_between_nodes(job):
    """Adasum, int8 and top-k where MPI carries the bytes."""
    body = """
    equal(hvd.allreduce(tf.one_hot(rank, size), op=hvd.Adasum), 1)
    x = tf.ones([600]) * (rank + 1)
    for compression in (hvd.Compression.int8, hvd.Compression.topk(1.0)):
        got = hvd.allreduce(x, op=hvd.Sum, compression=compression, name="x")
        assert np.allclose(got, total, rtol=1e-6), got
    report(checks=checks)
    """
    job(with_checks(body), 4, env={"SMDDP_NODES": "2"}).check(4)
