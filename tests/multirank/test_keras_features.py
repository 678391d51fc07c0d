"""Loops, layers, data and refusals of smddp_tf.keras, through mpirun."""

import re

import pytest
from conftest import KERASES, on_ranks

LOOPS = """
import copy, keras_modes
keras_modes.keras.utils.set_random_seed(1)
x = tf.constant(np.random.RandomState(0).randn(size * 4, 3).astype("float32"))
own = x[rank::size]
def loss_of(w, rows):
    return tf.reduce_mean(tf.square(tf.linalg.matvec(rows, w) - 1.0))
def sgd():
    return keras.optimizers.SGD(0.1, momentum=0.5)
def train(optimizer, rows, wrap=lambda f: f):
    w = tf.Variable([0.1, 0.2, 0.3], name="w")
    @wrap
    def step():
        with tf.GradientTape() as tape:
            loss = loss_of(w, rows)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])
    for _ in range(6):
        step()
    return w.numpy()
want = train(sgd(), x)
jit = lambda f: tf.function(f, jit_compile=True)
for wrap in (lambda f: f, tf.function, jit):
    optimizer = sgd()
    assert hvd.DistributedOptimizer(optimizer) is optimizer
    got = train(optimizer, own, wrap)
    # 6 steps at rate 0.1, gradients of about 1, an ulp or two each
    assert np.abs(got - want).max() < 1e-6, (got, want)
if keras_modes.KERAS3:  # others cannot be copied at all
    copied = copy.deepcopy(hvd.DistributedOptimizer(sgd()))
    assert np.abs(train(copied, own) - want).max() < 1e-6
restored = type(optimizer).from_config(optimizer.get_config())
assert not np.allclose(train(restored, own), want), "a plain optimizer reduced"
# A layer whose gradients stay local.
local, shared = tf.Variable(1.0), tf.Variable(1.0)
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
optimizer.register_local_var(local)
one = tf.constant(rank + 1.0)
optimizer.apply_gradients([(one, local), (one, shared)])
assert np.allclose(local, 1 - (rank + 1) / size) and np.allclose(shared, 1 - (size + 1) / 2)
layer, other = keras.layers.Dense(1), keras.layers.Dense(1)
layer.build((None, 2)), other.build((None, 2))
optimizer = hvd.PartialDistributedOptimizer(
    keras.optimizers.SGD(1.0), local_layers=layer, scale_local_gradients=False)
before = [layer.kernel.numpy().copy(), other.kernel.numpy().copy()]
grads = [tf.fill([2, 1], rank + 1.0)] * 2
optimizer.apply_gradients(zip(grads, [layer.kernel, other.kernel]))
assert np.allclose(layer.kernel, before[0] - (rank + 1))
assert np.allclose(other.kernel, before[1] - (size + 1) / 2)
# Two models and two optimizers in one step, in a function.
def gan(generator_optimizer, discriminator_optimizer, rows):
    keras.utils.set_random_seed(5)
    g = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
    d = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    @tf.function
    def step():
        with tf.GradientTape() as gt, tf.GradientTape() as dt:
            fake, real = d(g(rows)), d(rows)
            d_loss = tf.reduce_mean(tf.square(real - 1) + tf.square(fake))
            g_loss = tf.reduce_mean(tf.square(fake - 1))
        dv, gv = d.trainable_variables, g.trainable_variables
        d_grads, g_grads = dt.gradient(d_loss, dv), gt.gradient(g_loss, gv)
        discriminator_optimizer.apply_gradients(zip(d_grads, dv))
        generator_optimizer.apply_gradients(zip(g_grads, gv))
    for _ in range(8):
        step()
    return g.get_weights() + d.get_weights()
want = gan(sgd(), sgd(), x)
got = gan(hvd.DistributedOptimizer(sgd()), hvd.DistributedOptimizer(sgd()), own)
for a, b in zip(got, want):
    assert np.abs(a - b).max() < 2e-6, (a, b)
report(done=True)
"""


@on_ranks("keras_job", KERASES, 2, 3)
def test_custom_loops(keras_job, ranks):
    """apply_gradients in loops; copies; local variables; a GAN."""
    keras_job(LOOPS, ranks).check(ranks)


REFUSALS = """
import warnings, keras_modes
def refused(error, text, *args, **kwargs):
    try:
        hvd.DistributedOptimizer(*args, **kwargs)
    except error as caught:
        assert text in str(caught), caught
    else:
        raise SystemExit(f"accepted: {args} {kwargs}")
sgd = keras.optimizers.SGD
wrapped = hvd.DistributedOptimizer(sgd(0.1))
refused(ValueError, "distributed already", wrapped)
refused(TypeError, "'local_layers': it belongs to PartialDistributedOptimizer",
        sgd(0.1), local_layers=[])
refused(TypeError, "no argument 'nonsense'", sgd(0.1), nonsense=1)
refused(TypeError, "takes an optimizer object", "adam")
refused(ValueError, "needs op=Average", sgd(0.1), op=hvd.Sum, gradient_predivide_factor=2.0)
refused(ValueError, "not >= 1", sgd(0.1), backward_passes_per_step=0)
refused(ValueError, "give num_groups or groups", sgd(0.1), num_groups=2, groups=[[]])
# A step with local gradients is noticed, once.
optimizer, w = hvd.DistributedOptimizer(sgd(0.1)), tf.Variable(1.0)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        if hasattr(sgd, "aggregate_gradients"):
            optimizer.apply_gradients([(tf.constant(1.0), w)], skip_gradients_aggregation=True)
        else:
            sgd.apply(optimizer, [tf.constant(1.0)], [w])
    found = [str(w.message) for w in caught if "were not reduced" in str(w.message)]
    assert len(found) == 1, found
# fit() with an optimizer that is not distributed is noticed, and one that is, is not.
for distribute, expected in ((False, 1), (True, 0)):
    mode = keras_modes.Mode()
    optimizer = hvd.DistributedOptimizer(mode.optimizer()) if distribute else mode.optimizer()
    model = mode.make(optimizer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mode.fit(model, keras_modes.own_part(), 12,
                 [hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    found = [w for w in caught if "reduced no gradients" in str(w.message)]
    assert len(found) == expected, (distribute, [str(w.message) for w in caught])
# Ranks whose models differ are told, and the job goes on.
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2 + rank)])
model.compile(hvd.DistributedOptimizer(sgd(0.1)), "mse")
try:
    model.fit(tf.ones([4, 3]), tf.ones([4, 2 + rank]), verbose=0)
    raise SystemExit("different models were trained together")
except tf.errors.FailedPreconditionError as error:
    assert "[3, 2]" in error.message and "[3, 3]" in error.message, error.message
assert int(hvd.allreduce(tf.constant(1), op=hvd.Sum)) == size
try:
    hvd.callbacks.BroadcastGlobalVariablesCallback(size)
    raise SystemExit("a root out of range was accepted")
except ValueError as error:
    assert "out of range" in str(error)
report(done=True)
hvd.shutdown()
refused(ValueError, "init()", sgd(0.1))
"""


def test_refusals_and_warnings(keras_job):
    """Misuse is refused or warned about, by name, on every rank."""
    keras_job(REFUSALS, 2).check(2)


UNEVEN = """
import keras_modes
mode = keras_modes.Mode()
model = mode.make(hvd.DistributedOptimizer(mode.optimizer()))
rows = keras_modes.own_part()
mode.fit(model, rows[: len(rows) // (1 + rank)], 12, [])
# Rank 1 is done long before rank 0, and waits or ends as scripts do.
if rank == 1 and WAIT:
    time.sleep(4)
report(done=True)
"""


def test_uneven_data_without_shard(keras3_job):
    """Rank 0 is told what happened: that rank 1 is late, and then that it has ended."""
    env = {"SMDDP_STALL_WARNING_SECONDS": "1"}
    job = keras3_job("WAIT = True" + UNEVEN, 2, env=env)
    assert job.returncode != 0 and not job.timed_out
    assert re.search(r"stalled: waited 1\.\d s for rank 1 in .*out of data", job.output), job.output
    assert re.search(r"rank 1 .*has ended.*shard does\), or let it call join", job.output)
    assert "dense/kernel" in job.output


SETS = """
import keras_modes
halves = [hvd.add_process_set([0, 1]), hvd.add_process_set([2, 3])]
mine = halves[rank // 2]
def make(op=hvd.Average):
    return hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=mine, op=op)
w = tf.Variable([1.0, 2.0])
make().apply_gradients([(tf.constant([1.0, 1.0]) * rank, w)])
assert np.allclose(w, np.array([1.0, 2.0]) - np.mean(mine.ranks)), w
# Two models at once, one for each half of the job, each equal in its half.
mode = keras_modes.Mode()
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), process_set=mine)
model = mode.make(optimizer, seed=mine.ranks[0])
mode.fit(model, np.arange(rank, len(keras_modes.Y), size), 9, [])
digests = hvd.allgather_object(b"".join(w.tobytes() for w in model.get_weights()))
assert digests[0] == digests[1] and digests[2] == digests[3] and digests[0] != digests[2]
# Adasum: what the ranks agree on adds up as an average, what they do not as a sum.
v = tf.Variable(tf.zeros([2]))
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=mine, op=hvd.Adasum)
optimizer.apply_gradients([(tf.one_hot(rank % 2, 2), v)])
assert np.allclose(v, [-1, -1]), v
report(done=True)
"""


def test_process_sets_and_adasum(keras_job):
    """Two models in one job, and op=Adasum in an optimizer."""
    keras_job(SETS, 4).check(4)


BATCH_NORM = """
keras.utils.set_random_seed(0)
def check(shape, parts, mask=None, wrap=lambda f: f):
    options = {} if not hasattr(keras.layers.BatchNormalization, "_fused_batch_norm") \\
        else {"fused": False}
    plain, sync = keras.layers.BatchNormalization(**options), hvd.SyncBatchNormalization()
    whole = tf.constant(np.random.RandomState(0).randn(sum(parts), *shape).astype("float32") + 50)
    weight = tf.constant(np.random.RandomState(1).randn(sum(parts), *shape).astype("float32"))
    begin = sum(parts[:rank])
    rows = slice(begin, begin + parts[rank])
    plain.build(whole.shape), sync.build(whole.shape)
    def run(layer, x, w):
        @wrap
        def compute():
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x, training=True)
                loss = tf.reduce_sum(y * w)
            return y, *tape.gradient(loss, [x, layer.gamma, layer.beta])
        return compute()
    want = run(plain, whole, weight)
    got = run(sync, whole[rows], weight[rows])
    # Inputs of size 50 are centred: 2^-23 * 50 / 1, a few times; gradients sum up some 100 terms.
    assert np.allclose(got[0], want[0][rows], atol=5e-5), np.abs(got[0] - want[0][rows]).max()
    assert np.allclose(got[1], want[1][rows], atol=5e-5)
    for mine, theirs in zip(got[2:], want[2:]):
        total = hvd.allreduce(mine, op=hvd.Sum)
        assert np.allclose(total, theirs, atol=1e-3), (total, theirs)
    assert np.allclose(sync.moving_mean, plain.moving_mean, atol=1e-5)
    assert np.allclose(sync.moving_variance, plain.moving_variance, atol=1e-5)
even, uneven = [4] * size, [3 + 2 * r for r in range(size)]
for wrap in (lambda f: f, tf.function, lambda f: tf.function(f, jit_compile=True)):
    check((3,), even, wrap=wrap)
    check((4, 4, 3), even, wrap=wrap)
check((3,), uneven)
check((3,), [0] + [5] * (size - 1))
try:
    hvd.SyncBatchNormalization(fused=True)
    raise SystemExit("fused was accepted")
except ValueError as error:
    assert "fused" in str(error)
report(done=True)
"""


@on_ranks("keras_job", KERASES, 2, 3)
def test_sync_batch_normalization(keras_job, ranks):
    """Outputs, gradients and moving averages are those of the joined batch."""
    keras_job(BATCH_NORM, ranks).check(ranks)


V1 = """
import keras_modes
v1 = tf.compat.v1
x = np.random.RandomState(0).randn(size * 4, 3).astype("float32")
def train(distribute, rows, by_hand):
    with tf.Graph().as_default():
        w = v1.get_variable("w", initializer=tf.ones([3]), use_resource=True)
        loss = tf.reduce_mean(tf.square(tf.linalg.matvec(tf.constant(rows), w) - 1.0))
        optimizer = v1.train.MomentumOptimizer(0.1, 0.5)
        if distribute:
            optimizer = hvd.DistributedOptimizer(optimizer)
        if by_hand:
            op = optimizer.apply_gradients([(tf.gradients(loss, w)[0], w)])
        else:
            op = optimizer.minimize(loss)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for _ in range(5):
                session.run(op)
            return session.run(w)
want = train(False, x, False)
for by_hand in (False, True):
    got = train(True, x[rank::size], by_hand)
    assert np.abs(got - want).max() < 1e-6, (got, want)
# Eagerly, with a loss that is a function.
w = tf.Variable(tf.ones([3]))
optimizer = hvd.DistributedOptimizer(v1.train.MomentumOptimizer(0.1, 0.5))
for _ in range(5):
    rows = tf.constant(x[rank::size])
    loss = lambda: tf.reduce_mean(tf.square(tf.linalg.matvec(rows, w) - 1.0))
    optimizer.minimize(loss, var_list=[w])
assert np.abs(w.numpy() - want).max() < 1e-6
report(done=True)
"""


def test_tf1_optimizers(keras_job):
    """tf.compat.v1 optimizers, in graphs and eagerly."""
    keras_job(V1, 2).check(2)


ADDONS = """
import os, types, keras_modes
if os.environ.get("TF_USE_LEGACY_KERAS"):
    # Addons look for Keras's engine where Keras 2 had it.
    import tf_keras.src.engine.base_layer, tf_keras.src.engine.keras_tensor
    sys.modules["keras.src.engine"] = sys.modules["tf_keras.src.engine"]
    import keras
    for name in [n for n in sys.modules if n.startswith("tf_keras.src.engine.")]:
        sys.modules[name.removeprefix("tf_")] = sys.modules[name]
    keras = tf.keras
import warnings
warnings.simplefilter("ignore")
import tensorflow_addons as tfa
o = tfa.optimizers
def averaged(kind):
    return lambda: kind(keras.optimizers.legacy.SGD(0.1, momentum=0.5))
CASES = {
    "LAMB": lambda: o.LAMB(0.01), "NovoGrad": lambda: o.NovoGrad(0.01),
    "LazyAdam": lambda: o.LazyAdam(0.01), "AdamW": lambda: o.AdamW(0.01, 0.01),
    "SGDW": lambda: o.SGDW(0.01, 0.1, momentum=0.5),
    "MovingAverage": averaged(o.MovingAverage), "SWA": averaged(o.SWA),
    "Lookahead": averaged(o.Lookahead), "RectifiedAdam": lambda: o.RectifiedAdam(0.01),
    "Yogi": lambda: o.Yogi(0.01),
}
differences = {}
for name, make in CASES.items():
    differences[name] = keras_modes.Mode(make, tolerance=keras_modes.ADAM_TOLERANCE).check(name)
report(differences=differences)
"""


@pytest.mark.tf_keras
def test_tensorflow_addons(legacy_keras_job):
    """LAMB and nine others of tensorflow-addons 0.23."""
    # Found, not imported: under tf_keras that takes what ADDONS does first.
    probe = "importlib.metadata as m; m.version('tensorflow-addons')"
    reason = legacy_keras_job.why_not(probe)
    if reason:
        pytest.skip(f"tensorflow-addons is not here: {reason}")
    results = legacy_keras_job(ADDONS, 2).check(2)
    assert len(results[0]["differences"]) == 10
