"""XLA's two kinds of custom call: who gets which, what they carry, and the classes of failures."""

from scripts import with_checks

# Which TensorFlow has typed calls.
TYPED = """
from smddp_tf._graph import library
typed = [int(n) for n in tf.__version__.split(".")[:2]] >= [2, 18]
"""

CLASSES = """
kind = library.xla_call_kind()

@tf.function(jit_compile=True)
def mean(x):
    return hvd.allreduce(x)

def raised(call, *words):
    try:
        call()
    except tf.errors.OpError as error:
        for word in words:
            assert word in error.message, (word, error.message)
        return type(error).__name__
    raise SystemExit(f"no error: {words}")

found = {"mismatch": raised(lambda: mean(tf.ones([2 + rank])), "Mismatched", "[2]", "[3]")}
equal(mean(tf.constant(rank + 1.0)), total / size, "the job goes on")
if rank == 1:
    time.sleep(2.5)
found["late"] = raised(lambda: mean(tf.constant(1.0)), "SMDDP_TIMEOUT_SECONDS" if rank == 0 else "")
hvd.shutdown()
hvd.init()
equal(mean(tf.constant(rank + 1.0)), total / size, "connected anew")
if rank == 0:
    found["left"] = raised(lambda: mean(tf.constant(1.0)), "rank 1")
report(kind=kind, found=found, typed=typed)
"""


def test_classes_of_failures(job, python):
    """From TensorFlow 2.18 on as without jit; before, XLA has InternalError only."""
    job = job(with_checks(TYPED + CLASSES), 2, python=python, env={"SMDDP_TIMEOUT_SECONDS": "1"})
    # Its exit code tells that it failed: MPI is not finalized then.
    assert not job.timed_out and sorted(job.results) == [0, 1], job.output[-8000:]
    first, second = job.results[0], job.results[1]
    typed = first["typed"]
    assert first["kind"] == second["kind"] == ("typed" if typed else "legacy")
    assert first["found"] == {
        "mismatch": "FailedPreconditionError" if typed else "InternalError",
        "late": "DeadlineExceededError" if typed else "InternalError",
        "left": "UnknownError" if typed else "InternalError",
    }
    assert second["found"]["mismatch"] == first["found"]["mismatch"]


CARRIED = r"""
name = 'strange "näme" \\ ; = %25, {x} \n'

def each(dtype):
    x = tf.cast(tf.fill([2, 3], rank), dtype)
    moved = hvd.allgather(x), hvd.broadcast(x, size - 1), hvd.alltoall(tf.tile(x, [size, 1]))
    if dtype in DTYPES:
        moved += (hvd.allreduce(x, op=hvd.Sum, name=name, postscale_factor=2.0),)
    return moved

def check():
    for dtype in [*DTYPES, tf.bool, tf.int16, tf.uint16]:
        ranks = np.arange(size).astype(dtype.as_numpy_dtype)  # as bool: False, True, True
        got = tf.function(each, jit_compile=True)(dtype)
        equal(got[0], np.repeat(ranks, 2)[:, None], dtype)
        equal(got[1], ranks[-1], dtype)
        equal(got[2], np.repeat(ranks, 2)[:, None], dtype)
        if dtype in DTYPES:
            equal(got[3], size * (size - 1), dtype)
    scaled = tf.function(lambda: hvd.allreduce(
        tf.constant([1.0, 2.0], tf.float64), op=hvd.Sum, prescale_factor=1e-5,
        postscale_factor=3.0), jit_compile=True)()
    factor = float(np.float32(1e-5))  # as ops have it, in every mode
    equal(scaled, np.array([1.0, 2.0]) * size * (factor * 3.0))

assert library.xla_call_kind() == ("typed" if typed else "legacy")
check()
if typed:
    os.environ["SMDDP_TEST_XLA_CALL"] = ("typed", "legacy")[rank % 2]
    check()
    del os.environ["SMDDP_TEST_XLA_CALL"]

@tf.function
def of_unknown_shape(x):
    return tf.function(hvd.allreduce, jit_compile=True)(tf.boolean_mask(x, x > 0))
try:
    of_unknown_shape(tf.constant([1.0, -1.0]))
    raise SystemExit("accepted")
except tf.errors.UnimplementedError as error:
    assert "shape" in str(error) and "jit_compile=False" in str(error), error
report(checks=checks)
"""


def test_what_calls_carry(job, python):
    """Dtypes, names, scales; the two kinds meet: ranks of one job may differ."""
    job(with_checks(TYPED + CARRIED), 2, python=python).check(2)


FIT = """
import smddp_tf.keras as hvd_keras
keras = tf.keras
data = np.random.default_rng(3)
x_all = data.normal(size=(96, 6)).astype("float32")
y_all = data.integers(0, 3, size=96)

def weights(jit, optimizer, x, y, batch):
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3)])
    model.build((None, 6))
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                  jit_compile=jit)
    model.fit(x, y, batch_size=batch, epochs=2, shuffle=False, verbose=0)
    return np.concatenate([v.ravel() for v in model.get_weights()])

# Of every batch of 12 a rank has each second sample.
alone = weights(False, keras.optimizers.SGD(0.1, momentum=0.9), x_all, y_all, 12)
optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
got = weights(True, optimizer, x_all[rank::size], y_all[rank::size], 12 // size)
low, high = (hvd.allreduce(got, op=op).numpy() for op in (hvd.Min, hvd.Max))
assert np.array_equal(low, high)
report(worst=float(np.abs(got - alone).max()))
"""


def test_keras_fit(job, python):
    """fit(jit_compile=True) on two ranks learns what one process does on the whole batch."""
    for result in job(FIT, 2, python=python).check(2).values():
        # A mean of 12 in another order, 16 steps of rate 0.1 with momentum 0.9 (as 1.0): gradients
        # below 1 with a relative rounding of 2^-24 * 12 stay under 1e-5 * 16 * 0.1.
        assert result["worst"] < 2e-5, result
