"""What ranks do in test_keras_features.py."""

import copy
import time
import warnings

import keras_modes
import numpy as np
import tensorflow as tf
from checks import WAYS, raises
from harness import rank, report, size

import smddp_tf.keras as hvd

keras = tf.keras
v1 = tf.compat.v1


def _sgd():
    return keras.optimizers.SGD(0.1, momentum=0.5)


def _loss_of(w, rows):
    return tf.reduce_mean(tf.square(tf.linalg.matvec(rows, w) - 1.0))


def _train(optimizer, rows, wrap=lambda f: f):
    w = tf.Variable([0.1, 0.2, 0.3], name="w")

    @wrap
    def step():
        with tf.GradientTape() as tape:
            loss = _loss_of(w, rows)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])

    for _ in range(6):
        step()
    return w.numpy()


def _loops_and_copies(x, own):
    want = _train(_sgd(), x)
    for wrap in (lambda f: f, tf.function, WAYS["jit"]):
        optimizer = _sgd()
        assert hvd.DistributedOptimizer(optimizer) is optimizer
        got = _train(optimizer, own, wrap)
        # 6 steps at rate 0.1, gradients of about 1, an ulp or two each
        assert np.abs(got - want).max() < 1e-6, (got, want)
    if keras_modes.KERAS3:  # others cannot be copied at all
        copied = copy.deepcopy(hvd.DistributedOptimizer(_sgd()))
        assert np.abs(_train(copied, own) - want).max() < 1e-6
    restored = type(optimizer).from_config(optimizer.get_config())
    assert not np.allclose(_train(restored, own), want), "a plain optimizer reduced"


def _local_gradients():
    """A variable, and a layer, whose gradients stay local."""
    local, shared = tf.Variable(1.0), tf.Variable(1.0)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.register_local_var(local)
    one = tf.constant(rank + 1.0)
    optimizer.apply_gradients([(one, local), (one, shared)])
    assert np.allclose(local, 1 - (rank + 1) / size) and np.allclose(shared, 1 - (size + 1) / 2)
    layer, other = keras.layers.Dense(1), keras.layers.Dense(1)
    layer.build((None, 2))
    other.build((None, 2))
    repeat = keras.layers.RepeatVector(2)
    repeat.build((None, 1))
    optimizer = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(1.0), local_layers=[layer, repeat], scale_local_gradients=False
    )
    before = [layer.kernel.numpy().copy(), other.kernel.numpy().copy()]
    grads = [tf.fill([2, 1], rank + 1.0)] * 2
    optimizer.apply_gradients(zip(grads, [layer.kernel, other.kernel], strict=True))
    assert np.allclose(layer.kernel, before[0] - (rank + 1))
    assert np.allclose(other.kernel, before[1] - (size + 1) / 2)


def _gan(generator_optimizer, discriminator_optimizer, rows):
    """Two models and two optimizers in one step, in a function."""
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
        discriminator_optimizer.apply_gradients(zip(d_grads, dv, strict=True))
        generator_optimizer.apply_gradients(zip(g_grads, gv, strict=True))

    for _ in range(8):
        step()
    return g.get_weights() + d.get_weights()


def loops():
    keras.utils.set_random_seed(1)
    x = tf.constant(np.random.RandomState(0).randn(size * 4, 3).astype("float32"))
    own = x[rank::size]
    _loops_and_copies(x, own)
    _local_gradients()
    want = _gan(_sgd(), _sgd(), x)
    got = _gan(hvd.DistributedOptimizer(_sgd()), hvd.DistributedOptimizer(_sgd()), own)
    for a, b in zip(got, want, strict=True):
        assert np.abs(a - b).max() < 2e-6, (a, b)
    report(done=True)


def _refused(error, text, *args, **kwargs):
    with raises(error, text):
        hvd.DistributedOptimizer(*args, **kwargs)


def _arguments(sgd):
    wrapped = hvd.DistributedOptimizer(sgd(0.1))
    _refused(ValueError, "distributed already", wrapped)
    words = "'local_layers': it belongs to PartialDistributedOptimizer"
    _refused(TypeError, words, sgd(0.1), local_layers=[])
    _refused(TypeError, "no argument 'nonsense'", sgd(0.1), nonsense=1)
    _refused(TypeError, "takes an optimizer object", "adam")
    options = {"op": hvd.Sum, "gradient_predivide_factor": 2.0}
    _refused(ValueError, "needs op=Average", sgd(0.1), **options)
    _refused(ValueError, "not >= 1", sgd(0.1), backward_passes_per_step=0)
    _refused(ValueError, "give num_groups or groups", sgd(0.1), num_groups=2, groups=[[]])


def _a_step_with_local_gradients(sgd):
    """It is noticed, once."""
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
    if hasattr(sgd, "aggregate_gradients"):
        optimizer = hvd.DistributedOptimizer(sgd(0.1), backward_passes_per_step=2)
        optimizer.apply_gradients([(tf.constant(1.0), w)])
        with raises(ValueError, "aggregated itself"):
            optimizer.apply_gradients([(tf.constant(1.0), w)], skip_gradients_aggregation=True)


def _fit_that_is_not_distributed():
    """It is noticed; one that is, is not."""
    for distribute, expected in ((False, 1), (True, 0)):
        mode = keras_modes.Mode()
        optimizer = mode.optimizer()
        model = mode.make(hvd.DistributedOptimizer(optimizer) if distribute else optimizer)
        broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            mode.fit(model, keras_modes.local_slice(), 12, [broadcast])
        found = [w for w in caught if "reduced no gradients" in str(w.message)]
        assert len(found) == expected, (distribute, [str(w.message) for w in caught])


def _models_that_differ(sgd):
    """Ranks are told, and the job goes on."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2 + rank)])
    model.compile(hvd.DistributedOptimizer(sgd(0.1)), "mse")
    with raises(tf.errors.FailedPreconditionError, "[3, 2]", "[3, 3]"):
        model.fit(tf.ones([4, 3]), tf.ones([4, 2 + rank]), verbose=0)
    assert int(hvd.allreduce(tf.constant(1), op=hvd.Sum)) == size


def refusals():
    sgd = keras.optimizers.SGD
    _arguments(sgd)
    _a_step_with_local_gradients(sgd)
    _fit_that_is_not_distributed()
    _models_that_differ(sgd)
    with raises(ValueError, "out of range"):
        hvd.callbacks.BroadcastGlobalVariablesCallback(size)
    report(done=True)
    hvd.shutdown()
    _refused(ValueError, "init()", sgd(0.1))


def uneven_data():
    mode = keras_modes.Mode()
    model = mode.make(hvd.DistributedOptimizer(mode.optimizer()))
    rows = keras_modes.local_slice()
    mode.fit(model, rows[: len(rows) // (1 + rank)], 12, [])
    # Rank 1 is done long before rank 0, and waits before it ends as scripts do.
    if rank == 1:
        time.sleep(4)
    report(done=True)


def process_sets_and_adasum():
    halves = [hvd.add_process_set([0, 1]), hvd.add_process_set([2, 3])]
    mine = halves[rank // 2]
    w = tf.Variable([1.0, 2.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=mine)
    optimizer.apply_gradients([(tf.constant([1.0, 1.0]) * rank, w)])
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
    sgd = keras.optimizers.SGD(1.0)
    optimizer = hvd.DistributedOptimizer(sgd, process_set=mine, op=hvd.Adasum)
    optimizer.apply_gradients([(tf.one_hot(rank % 2, 2), v)])
    assert np.allclose(v, [-1, -1]), v
    report(done=True)


def _normalize(layer, x, w, wrap):
    """The result of the layer, and the gradients of what it was made from."""

    @wrap
    def compute():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
            loss = tf.reduce_sum(y * w)
        return y, *tape.gradient(loss, [x, layer.gamma, layer.beta])

    return compute()


def _check_normalization(shape, parts, wrap=lambda f: f):
    layer = keras.layers.BatchNormalization
    options = {"fused": False} if hasattr(layer, "_fused_batch_norm") else {}
    plain, sync = layer(**options), hvd.SyncBatchNormalization()
    whole = tf.constant(np.random.RandomState(0).randn(sum(parts), *shape).astype("float32") + 50)
    weight = tf.constant(np.random.RandomState(1).randn(sum(parts), *shape).astype("float32"))
    begin = sum(parts[:rank])
    rows = slice(begin, begin + parts[rank])
    plain.build(whole.shape)
    sync.build(whole.shape)
    want = _normalize(plain, whole, weight, wrap)
    got = _normalize(sync, whole[rows], weight[rows], wrap)
    # Inputs of size 50 are centred: 2^-23 * 50 / 1, a few times; gradients sum up some 100 terms.
    assert np.allclose(got[0], want[0][rows], atol=5e-5), np.abs(got[0] - want[0][rows]).max()
    assert np.allclose(got[1], want[1][rows], atol=5e-5)
    for mine, theirs in zip(got[2:], want[2:], strict=True):
        total = hvd.allreduce(mine, op=hvd.Sum)
        assert np.allclose(total, theirs, atol=1e-3), (total, theirs)
    assert np.allclose(sync.moving_mean, plain.moving_mean, atol=1e-5)
    assert np.allclose(sync.moving_variance, plain.moving_variance, atol=1e-5)


def _check_normalization_in_float64():
    """Nothing is rounded to float32 on its way between the ranks."""
    layer = keras.layers.BatchNormalization
    options = {"fused": False} if hasattr(layer, "_fused_batch_norm") else {}
    whole = np.random.RandomState(0).randn(4 * size, 3) + 50
    plain, sync = layer(dtype="float64", **options), hvd.SyncBatchNormalization(dtype="float64")
    want = plain(whole, training=True)[4 * rank : 4 * rank + 4]
    got = sync(whole[4 * rank : 4 * rank + 4], training=True)
    # Inputs of size 50 are centred, and their squares of 2,500 too: some units of 2^-52 * 2,500.
    assert np.abs(got - want).max() < 1e-11, np.abs(got - want).max()


def sync_batch_normalization():
    keras.utils.set_random_seed(0)
    _check_normalization_in_float64()
    even, uneven = [4] * size, [3 + 2 * r for r in range(size)]
    for wrap in WAYS.values():
        _check_normalization((3,), even, wrap)
        _check_normalization((4, 4, 3), even, wrap)
    _check_normalization((3,), uneven)
    _check_normalization((3,), [0] + [5] * (size - 1))
    with raises(ValueError, "fused"):
        hvd.SyncBatchNormalization(fused=True)
    report(done=True)


def _train_in_a_session(distribute, rows, by_hand):
    with tf.Graph().as_default():
        w = v1.get_variable("w", initializer=tf.ones([3]), use_resource=True)
        loss = _loss_of(w, tf.constant(rows))
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


def _accumulating(rate=0.1, **options):
    optimizer = v1.train.MomentumOptimizer(rate, 0.5)
    return hvd.DistributedOptimizer(optimizer, backward_passes_per_step=2, **options)


def _accumulate_in_a_session(halves, way, **options):
    """Weights after 5 updates of 2 passes each, and the global step after each pass."""
    with tf.Graph().as_default():
        rows = v1.placeholder(tf.float32, [None, 3])
        w = v1.get_variable("w", initializer=tf.ones([3]), use_resource=True)
        v1.get_variable("unused", initializer=tf.ones([3]))
        step = v1.train.get_or_create_global_step()
        loss, optimizer = _loss_of(w, rows), _accumulating(**options)
        if way == "minimize":
            op = optimizer.minimize(loss, global_step=step)
        elif way == "clip":
            pairs = optimizer.compute_gradients(loss)
            clipped = [(None if g is None else tf.clip_by_norm(g, 1e3), v) for g, v in pairs]
            op = optimizer.apply_gradients(clipped, step)
        else:
            op = optimizer.apply_gradients([(tf.gradients(loss, w)[0], w)], global_step=step)
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            for number in range(10):
                session.run(op, {rows: halves[number % 2]})
                assert session.run(step) == number + 1
                assert number or (session.run(w) == 1).all(), "updated too early"
            return session.run(w)


def tf1_passes():
    x = np.random.RandomState(0).randn(size * 4, 3).astype("float32")
    want = _train_in_a_session(False, x, False)
    own = x[rank::size]
    halves = own[:2], own[2:]
    for way in ("minimize", "clip", "tf.gradients"):
        got = _accumulate_in_a_session(halves, way, average_aggregated_gradients=True)
        assert np.abs(got - want).max() < 1e-6, (way, got, want)
    sums = _accumulate_in_a_session(halves, "minimize", rate=0.1 / (2 * size), op=hvd.Sum)
    assert np.abs(sums - want).max() < 1e-6, (sums, want)
    for wrap in (lambda f: f, tf.function):
        w = tf.Variable(tf.ones([3]))
        optimizer = _accumulating(average_aggregated_gradients=True)

        @wrap
        def step(rows, w=w, optimizer=optimizer):
            optimizer.minimize(lambda: _loss_of(w, rows), var_list=[w])

        for number in range(10):
            step(tf.constant(halves[number % 2]))
        assert np.abs(w.numpy() - want).max() < 1e-6, (wrap, w, want)
    report(done=True)


def tf1_optimizers():
    x = np.random.RandomState(0).randn(size * 4, 3).astype("float32")
    want = _train_in_a_session(False, x, False)
    for by_hand in (False, True):
        got = _train_in_a_session(True, x[rank::size], by_hand)
        assert np.abs(got - want).max() < 1e-6, (got, want)
    # Eagerly, with a loss that is a function.
    w = tf.Variable(tf.ones([3]))
    optimizer = hvd.DistributedOptimizer(v1.train.MomentumOptimizer(0.1, 0.5))
    rows = tf.constant(x[rank::size])
    for _ in range(5):
        optimizer.minimize(lambda: _loss_of(w, rows), var_list=[w])
    assert np.abs(w.numpy() - want).max() < 1e-6
    report(done=True)
