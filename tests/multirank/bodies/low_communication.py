"""What ranks do in test_low_communication.py.

Weights, inputs and rates are small integers and powers of two, so that every product and sum is
exact in float64, whatever the order. Inputs are multiples of the number of ranks, so averages are
exact as well.
"""

import copy

import numpy as np
import tensorflow as tf
from checks import WAYS, equal, raises
from harness import OUT, rank, report, size

import smddp_tf.keras as hvd

keras = tf.keras
RATE = 2.0**-6


def _inputs(rows=4, at=None):
    """A rank's rows: integers, multiples of the number of ranks."""
    rng = np.random.RandomState(rank if at is None else at)
    x = rng.randint(-3, 4, (rows, 3)) * size
    return tf.constant(x, tf.float64), tf.constant(rng.randint(-3, 4, (rows, 2)), tf.float64)


def _weights():
    return [
        tf.Variable(np.arange(6.0).reshape(3, 2), name="kernel"),
        tf.Variable([1.0, -1.0], dtype=tf.float64, name="bias"),
    ]


def _gradients(weights, x, y):
    """Of a squared error, so that they depend on the weights; the bias's is a multiple too."""
    with tf.GradientTape() as tape:
        error = tf.matmul(x, weights[0]) + size * weights[1] - y * size
        loss = tf.reduce_sum(tf.square(error)) / 2
    return tape.gradient(loss, weights)


def _step(optimizer, weights, way):
    @WAYS[way]
    def step(x, y):
        grads = _gradients(weights, x, y)
        optimizer.apply_gradients(list(zip(grads, weights, strict=True)))

    return step


def equals_synchronous_training():
    """sync_every=1 with an outer SGD(1): the bits of averaged gradients, step by step."""
    for way in WAYS:
        pairs = []
        for options in ({}, {"sync_every": 1, "outer_optimizer": keras.optimizers.SGD(1.0)}):
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(RATE), **options)
            weights = _weights()
            pairs.append((weights, _step(optimizer, weights, way)))
        for number in range(3):
            x, y = _inputs(at=rank + 10 * number)
            for _, step in pairs:
                step(x, y)
            for one, other in zip(pairs[0][0], pairs[1][0], strict=True):
                equal(other, one.numpy(), way, number)
            assert np.any(pairs[0][0][0].numpy() != np.arange(6.0).reshape(3, 2))
    report()


def _gradient(at, number, shape):
    """A rank's gradient of a step: integers, so that all sums are exact."""
    return np.random.RandomState(100 * at + number).randint(-8, 9, shape).astype(float)


class Reference:
    """The algorithm in numpy, with all ranks in one process."""

    RATE, OUTER, MOMENTUM = 2.0**-4, 2.0**-1, 2.0**-2

    def __init__(self, shapes, fragments, sync_every, delay=0, alpha=0.0):
        self.delay, self.alpha, self.averages = delay, alpha, {}
        self.anchors = [np.zeros(shape) for shape in shapes]
        self.speeds = [np.zeros(shape) for shape in shapes]
        self.weights = [[np.zeros(shape) for shape in shapes] for _ in range(size)]
        self.fragments, self.every, self.steps = fragments, sync_every, 0

    def step(self, number):
        for at, weights in enumerate(self.weights):
            for weight in weights:
                weight -= self.RATE * _gradient(at, number, weight.shape)
        self.steps += 1
        for f, indices in enumerate(self.fragments):
            offset = (f + 1) * self.every // len(self.fragments)
            arrives = self.steps - offset - self.delay
            if self.delay and arrives >= 0 and arrives % self.every == 0:
                self.arrive(indices, self.alpha)
            if self.steps % self.every == offset % self.every:
                self.depart(indices)
                if not self.delay:
                    self.arrive(indices)

    def exchange(self, indices):
        self.depart(indices)
        self.arrive(indices)

    def depart(self, indices):
        for i in indices:
            differences = [self.anchors[i] - weights[i] for weights in self.weights]
            self.averages[i] = sum(differences) / size

    def arrive(self, indices, alpha=0.0):
        for i in indices:
            average = self.averages.pop(i)
            self.speeds[i] = self.MOMENTUM * self.speeds[i] - self.OUTER * average
            self.anchors[i] = self.anchors[i] + (  # Nesterov's
                self.MOMENTUM * self.speeds[i] - self.OUTER * average
            )
            for weights in self.weights:
                weights[i] = alpha * weights[i] + (1 - alpha) * self.anchors[i]


def _local(sync_every, fragments=1, inner=None, **options):
    outer = keras.optimizers.SGD(Reference.OUTER, momentum=Reference.MOMENTUM, nesterov=True)
    return hvd.DistributedOptimizer(
        inner or keras.optimizers.SGD(Reference.RATE),
        sync_every=sync_every,
        outer_optimizer=outer,
        fragments=fragments,
        **options,
    )


def _follows(way, sync_every, fragments, indices):
    shapes = [(4, 2), (3,), (5,)]
    reference = Reference(shapes, indices, sync_every)
    optimizer = _local(sync_every, fragments)
    weights = [tf.Variable(tf.zeros(shape, tf.float64)) for shape in shapes]

    @WAYS[way]
    def step(*grads):
        optimizer.apply_gradients(list(zip(grads, weights, strict=True)))

    def compare(number):
        own = reference.weights[rank]
        for one, want in zip(weights, own, strict=True):
            equal(one, want, way, sync_every, fragments, number)

    for number in range(2 * sync_every + 1):
        step(*[tf.constant(_gradient(rank, number, shape)) for shape in shapes])
        reference.step(number)
        compare(number)
    optimizer.synchronize()
    late = [f for f, one in enumerate(indices) if _since(reference, f)]
    for f in late:
        reference.exchange(indices[f])
    reference.steps = 0
    compare("synchronized")
    optimizer.synchronize()  # nothing more: momentum alone moves no weights
    compare("twice")
    hvd.check_ranks_equal(weights)
    weights[0].assign(weights[0] * 0 + 2.0)  # between rounds a script may set weights
    reference.weights = [[one.copy() for one in own] for own in reference.weights]
    reference.anchors[0] = np.full(shapes[0], 2.0)
    for own in reference.weights:
        own[0][:] = 2.0
    for number in range(sync_every):
        step(*[tf.constant(_gradient(rank, number, shape)) for shape in shapes])
        reference.step(number)
    compare("after weights were set")


def _since(reference, fragment):
    offset = (fragment + 1) * reference.every // len(reference.fragments)
    steps = reference.steps
    return steps if steps < offset else (steps - offset) % reference.every


def travels(alpha):
    """Exchanges that arrive later: what was trained meanwhile is mixed in, as alpha says."""
    shapes, indices = [(4, 2), (3,), (5,)], [[0], [1, 2]]
    for way in ("eager", "function"):
        reference = Reference(shapes, indices, 4, 1, alpha)
        optimizer = _local(4, 2, fragment_sync_delay=1, fragment_update_alpha=alpha)
        weights = [tf.Variable(tf.zeros(shape, tf.float64)) for shape in shapes]

        @WAYS[way]
        def step(*grads):
            optimizer.apply_gradients(list(zip(grads, weights, strict=True)))  # noqa: B023

        for number in range(10):
            step(*[tf.constant(_gradient(rank, number, shape)) for shape in shapes])
            reference.step(number)
            for one, want in zip(weights, reference.weights[rank], strict=True):
                equal(one, want, way, alpha, number)
        # After ten steps the first fragment has just departed.
        optimizer.synchronize()
        reference.arrive(indices[0], alpha)
        for fragment in indices[not alpha :]:
            reference.exchange(fragment)
        for one, want in zip(weights, reference.weights[rank], strict=True):
            equal(one, want, way, alpha, "synchronized")
        hvd.check_ranks_equal([*weights, *optimizer.outer_state.anchors])
    optimizer = _local(4, fragment_sync_delay=1)

    @tf.function(jit_compile=True)
    def compiled():
        optimizer.apply_gradients([(tf.ones((3,), tf.float64), weights[1])])

    with raises(NotImplementedError, "fragment_sync_delay", "jit_compile=True"):
        compiled()
    report()


def _accumulates():
    """With passes, a round is so many updates, and not so many calls."""
    weight = tf.Variable([0.0], dtype=tf.float64)
    optimizer = _local(2, backward_passes_per_step=2)
    for call in range(4):
        optimizer.apply_gradients([(tf.constant([rank + 1.0], tf.float64), weight)])
        if call == 2:
            equal(weight, -2 * Reference.RATE * (rank + 1), "before the exchange")
    total = 4 * Reference.RATE * (size + 1) / 2
    equal(weight, -Reference.OUTER * (1 + Reference.MOMENTUM) * total, "after it")


def _quantized():
    """int8 sends 8 bits of each difference; the ranks end with the same bits."""
    parts = [tf.Variable(tf.zeros((20, 10))), tf.Variable(tf.zeros(800))]
    optimizer = _local(2, should_quantize=True)
    for number in range(2):
        grads = tf.constant(_gradient(rank, number, 1000), tf.float32)
        grads = [tf.reshape(grads[:200], (20, 10)), grads[200:]]
        optimizer.apply_gradients(list(zip(grads, parts, strict=True)))
    hvd.check_ranks_equal([*parts, *optimizer.outer_state.anchors])
    weight = np.concatenate([part.numpy().reshape(-1) for part in parts])
    both = [sum(_gradient(at, n, 1000) for n in range(2)) for at in range(size)]
    want = Reference.OUTER * (1 + Reference.MOMENTUM) * Reference.RATE * sum(both) / size
    # Each rank's difference is off by its largest magnitude / 254, at most 16 * RATE.
    bound = Reference.OUTER * (1 + Reference.MOMENTUM) * 16 * Reference.RATE / 254 * 1.01
    assert np.abs(weight + want).max() <= bound
    assert np.any(weight != -want), "8 bits cannot hold these"


def local_steps():
    """Every way follows the algorithm, bit by bit."""
    for way in WAYS:
        _follows(way, 3, 1, [[0, 1, 2]])
        _follows(way, 4, 2, [[0], [1, 2]])
    _accumulates()
    _quantized()
    _refusals()
    report()


def _refusals():
    sgd, wrap = keras.optimizers.SGD, hvd.DistributedOptimizer
    with raises(ValueError, "outer_optimizer needs sync_every"):
        wrap(sgd(), outer_optimizer=sgd())
    with raises(ValueError, "sync_every=0 is not >= 1"):
        wrap(sgd(), sync_every=0)
    with raises(ValueError, "op=Sum", "sync_every"):
        wrap(sgd(), sync_every=2, op=hvd.Sum)
    with raises(ValueError, "fragments=3 is more than sync_every=2"):
        wrap(sgd(), sync_every=2, fragments=3)
    with raises(ValueError, "not both"):
        wrap(sgd(), sync_every=2, should_quantize=True, compression=hvd.Compression.fp16)
    with raises(TypeError, "outer_optimizer=", "not an optimizer object"):
        wrap(sgd(), sync_every=2, outer_optimizer=sgd)
    with raises(ValueError, "outer_optimizer is wrapped"):
        wrap(sgd(), sync_every=2, outer_optimizer=wrap(sgd()))
    with raises(ValueError, "use_ema=True"):
        wrap(sgd(use_ema=True), sync_every=2)
    with raises(ValueError, "tf.compat.v1", "sessions"):
        wrap(tf.compat.v1.train.GradientDescentOptimizer(0.1), sync_every=2)
    optimizer, weight = wrap(sgd(), sync_every=2, fragments=2), tf.Variable(1.0)
    with raises(ValueError, "fragments=2 is more than the 1 variables"):
        optimizer.apply_gradients([(tf.constant(1.0), weight)])
    optimizer = wrap(sgd(), sync_every=2)
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = weight * weight
    with raises(ValueError, "DistributedGradientTape"):
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])


def another_number():
    """Ranks with another sync_every are told at the first exchange."""
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), sync_every=2 + rank)
    weight = tf.Variable([1.0])
    with raises(tf.errors.FailedPreconditionError, "sync_every=2", "sync_every=3"):
        for _ in range(3):
            optimizer.apply_gradients([(tf.constant([1.0]), weight)])
    report()


def _compiled(optimizer, **options):
    """A small model with moving statistics; other weights on each rank."""
    keras.utils.set_random_seed(rank)
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Dense(8, activation="relu"),
            layers.BatchNormalization(),
            layers.Dense(1, dtype="float32"),
        ]
    )
    model.build((None, 3))
    model.compile(optimizer, "mse", **options)
    return model


def _fit(model, callbacks=(), **options):
    rng = np.random.RandomState(10 + rank)
    x = rng.randn(28, 3).astype("float32")
    y = x.sum(1, keepdims=True)
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), *callbacks]
    return model.fit(
        x,
        y,
        batch_size=4,
        verbose=0,
        shuffle=False,
        callbacks=callbacks,
        validation_data=(x, y),
        **options,
    )


class _Differences(keras.callbacks.Callback):
    """Whether the ranks' weights are equal at the end of each batch and of each epoch."""

    def __init__(self):
        super().__init__()
        self.batches, self.epochs = [], []

    def _equal(self):
        texts = [w.tobytes() for w in self.model.get_weights()]
        return len(set(map(tuple, hvd.allgather_object(texts)))) == 1

    def on_train_batch_end(self, batch, logs=None):
        own = [np.asarray(w).tobytes() for w in self.model.trainable_variables]
        self.batches.append(len(set(map(tuple, hvd.allgather_object(own)))) == 1)

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(self._equal())


def fits(policy=None, path="model.keras", **compile_options):
    """Ranks are equal after every third batch, and in all they hold at the end of an epoch."""
    if policy:
        keras.mixed_precision.set_global_policy(policy)
    model = _compiled(_local(3, inner=keras.optimizers.Adam(0.01)), **compile_options)
    seen, check = _Differences(), hvd.callbacks.CheckRanksEqual(every=1)
    history = _fit(model, [seen, check], epochs=3).history
    # In mixed_float16 the first scale is too large, so all ranks skip the first steps.
    known = 2 if policy else 0
    wanted = [False, False, True, False, False, True, False] * 3
    assert seen.batches[known:] == wanted[known:], seen.batches
    assert seen.epochs == [True] * 3
    assert history["val_loss"][-1] < history["val_loss"][0]
    hvd.check_ranks_equal([*model.weights])
    _saved(model, str(OUT / f"rank{rank}-{path}"))
    report()


def _state(model):
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    state = optimizer.outer_state
    found = [np.asarray(one) for one in (*state.anchors, state.steps)]
    for outer in state.outer_optimizers:
        listed = outer.variables
        found += [
            np.asarray(tf.convert_to_tensor(v)) for v in (listed() if callable(listed) else listed)
        ]
    return found


def _saved(model, path):
    """The file has the outer state, for hvd.load_model(); Keras alone loads the rest."""
    step = tf.ones((4, 3)), tf.ones((4, 1))
    model.train_on_batch(*step)  # so that a round has begun
    model.save(path)
    alone = keras.models.load_model(path)
    for one, other in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    outer = keras.optimizers.SGD(Reference.OUTER, momentum=Reference.MOMENTUM, nesterov=True)
    loaded = hvd.load_model(path, sync_every=3, outer_optimizer=outer)
    before = _state(model)
    assert (
        any(np.any(one) for one in before)
        and int(_state(loaded)[len(model.trainable_variables)]) == 1
    )
    for one, other in zip(before, _state(loaded), strict=True):
        np.testing.assert_array_equal(one, other)
    for both in (model, loaded):  # they go on alike
        both.train_on_batch(*step)
        both.train_on_batch(*step)
    for one, other in zip(model.trainable_variables, loaded.trainable_variables, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    hvd.check_ranks_equal(loaded.trainable_variables)


def states_and_copies():
    """An elastic state has anchors and momenta: who joins gets them; a copy begins a round anew."""
    model = _compiled(_local(3))
    _fit(model, epochs=1)
    state = hvd.elastic.KerasState(model)
    model.train_on_batch(tf.ones((4, 3)) * (rank + 1), tf.ones((4, 1)))
    for momentum in model.optimizer.outer_state.outer_optimizers[0].momentums:
        momentum.assign(momentum * (rank + 2.0))  # as if a rank had joined
    state.sync()
    hvd.check_ranks_equal([*model.trainable_variables])
    before = _state(model)
    assert int(before[len(model.trainable_variables)]) == 1
    model.train_on_batch(tf.ones((4, 3)), tf.ones((4, 1)))
    state.restore()
    for one, other in zip(before, _state(model), strict=True):
        np.testing.assert_array_equal(one, other)

    copied, weight = copy.deepcopy(_local(3)), tf.Variable([0.0])
    for _ in range(3):
        copied.apply_gradients([(tf.constant([rank + 1.0]), weight)])
    hvd.check_ranks_equal([weight])
    assert float(weight[0]) != 0.0
    report()
