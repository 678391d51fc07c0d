"""What ranks do in test_keras_evaluate.py.

The model returns its input, and its loss is the mean of that, so both tell which elements it saw.
"""

import warnings

import numpy as np
import tensorflow as tf
from checks import raises
from harness import rank, report, size, without_init

import smddp_tf.keras as hvd

keras = tf.keras
Dataset = tf.data.Dataset
X = np.arange(96.0, dtype="float32")[:, None]
PAIRS = Dataset.from_tensor_slices((X, 0 * X))


def _model(**compiled):
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Sequential([keras.Input((1,)), layer])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mae", **compiled)
    return model


class Batches(getattr(keras.utils, "PyDataset", None) or keras.utils.Sequence):
    """Twelve batches of eight elements."""

    def __len__(self):
        return 12

    def __getitem__(self, i):
        return X[i * 8 : i * 8 + 8], 0 * X[i * 8 : i * 8 + 8]


def _check(model, data, elements, **options):
    """Checks that these are the elements, from the beginning, that all ranks together see."""
    y = {"y": 0 * X} if data is X else {}
    got = hvd.evaluate(model, data, **y, **options)
    assert abs(got - X[:elements].mean()) < 1e-4, (elements, got, options)
    got = hvd.predict(model, data, **options)
    assert np.array_equal(got, X[:elements]), (elements, got.ravel(), options)


def steps():
    """The first batches of all data are those that the ranks divide."""
    model = _model()
    batches = PAIRS.batch(8)
    for count in (1, 3, 4, 7, 12):
        for data in (batches, batches.filter(lambda *_: True), batches.repeat(), Batches()):
            _check(model, data, 8 * count, steps=count)
        _check(model, X, 8 * count, steps=count, batch_size=8)
    _check(model, X, 64, steps=2)
    _check(model, batches, 96, steps=100)
    own = PAIRS.shard(size, rank).batch(4)
    assert len(hvd.predict(model, own, steps=2, sharded=True)) == 8 * size
    mean = X[: 8 * size].mean()
    assert abs(hvd.evaluate(model, own, steps=2, sharded=True) - mean) < 1e-4
    with raises(ValueError, "steps=0 is not >= 1"):
        hvd.evaluate(model, batches, steps=0)
    with raises(TypeError, "steps=1.5 is not a whole number"):
        hvd.predict(model, X, steps=1.5)
    report(done=True)


def shuffled():
    """Refused, unless seeds make the order the same on all ranks."""
    model = _model()
    tf.random.set_seed(rank)  # as scripts do
    again = {"reshuffle_each_iteration": False}
    for data in (
        PAIRS.shuffle(96).batch(8),
        PAIRS.shuffle(96, **again).batch(8).prefetch(2),
        PAIRS.shuffle(96, seed=3).batch(8),
        PAIRS.batch(8).shuffle(12, seed=rank).map(lambda x, y: (x, y)),
        Dataset.zip((PAIRS.shuffle(96), PAIRS)).map(lambda one, other: other).batch(8),
    ):
        for call in (hvd.evaluate, hvd.predict):
            with raises(ValueError, "shuffled, in another order on each rank", "sharded=True"):
                call(model, data)
    part = hvd.shard(PAIRS).shuffle(96).batch(8)
    assert abs(hvd.evaluate(model, part, sharded=True) - X.mean()) < 1e-4
    tf.random.set_seed(5)
    for data in (PAIRS.shuffle(96, seed=3).batch(8), PAIRS.shuffle(96, seed=3, **again).batch(8)):
        for _ in range(2):
            assert abs(hvd.evaluate(model, data) - X.mean()) < 1e-4
            assert np.array_equal(np.sort(hvd.predict(model, data), 0), X)
    report(done=True)


class Narrow(keras.Model):
    """Has an evaluate() and a predict() of its own, with few arguments."""

    def evaluate(self, x, y, sample_weight=None, batch_size=None, return_dict=False, verbose=0):
        return super().evaluate(
            x, y, batch_size, verbose, sample_weight=sample_weight, return_dict=return_dict
        )

    def predict(self, x, verbose=0):
        return super().predict(x, verbose=verbose)


def own_methods():
    """They are not given steps= unless the script gives it."""
    inputs = keras.Input((1,))
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = Narrow(inputs, layer(inputs))
    model.compile(keras.optimizers.SGD(0.01), "mae")
    part = X[rank::size]
    for data, sharded in ((X, False), (part, True)):
        got = hvd.evaluate(model, data, 0 * data, sharded=sharded)
        assert abs(got - X.mean()) < 1e-4, (rank, got)
        assert np.array_equal(hvd.predict(model, data, sharded=sharded), X)
    report(done=True)


class Composite(keras.Model):
    """Predicts rows that are no arrays: ragged ones, sparse ones, text and complex numbers."""

    def call(self, x):
        """Of x, in a list."""
        lengths = tf.cast(x[:, 0], tf.int32) % 3
        ragged = tf.RaggedTensor.from_row_lengths(tf.repeat(x[:, 0], lengths), lengths)
        sparse = tf.sparse.from_dense(tf.concat([x, 0 * x, x % 2], 1))
        return [ragged, sparse, tf.strings.as_string(x), tf.complex(x, 1 - x)]


def _lists(outputs):
    ragged, sparse, *arrays = outputs
    dense = tf.sparse.to_dense(sparse).numpy()
    return [ragged.to_list(), *(array.tolist() for array in (dense, *arrays))]


def composite_outputs():
    """They come as from predict() of one process, also where a rank has no rows."""
    model = Composite()
    model.compile()
    for count in (1, size + 1, 20):
        got = hvd.predict(model, X[:count], batch_size=4)
        assert _lists(got) == _lists(model.predict(X[:count], verbose=0)), (count, got)
    count = 20 - 20 % size
    got = hvd.predict(model, hvd.shard(X[:20]), batch_size=2, sharded=True)
    assert _lists(got) == _lists(model.predict(X[:count], verbose=0)), got
    with raises(ValueError, "the ranks' parts have"):
        hvd.predict(model, X[: rank + 1], sharded=True)
    report(done=True)


class Interrupt(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise KeyboardInterrupt


def interrupted():
    """After a fit() that did not end, the callback makes evaluate() return all ranks' metrics."""
    model = _model()
    average = hvd.callbacks.MetricAverageCallback()
    part = PAIRS.shard(size, rank).batch(8)
    try:
        model.fit(part, callbacks=[average, Interrupt()], verbose=0)
    except KeyboardInterrupt:
        hvd.barrier()
    for layer in model.layers:
        layer.set_weights([np.ones((1, 1))])
    for _ in range(2):
        got = model.evaluate(part, callbacks=[average], verbose=0)
        assert abs(got - X.mean()) < 1e-4, (rank, got)

    class Inside(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.got = self.model.evaluate(part, callbacks=[average], verbose=0)

    inside = Inside()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mae")
    history = model.fit(
        part, validation_data=part, epochs=2, callbacks=[average, inside], verbose=0
    )
    assert abs(inside.got - X.mean()) < 1e-4, (rank, inside.got)
    assert np.allclose(history.history["val_loss"], X.mean(), atol=1e-4), history.history
    report(done=True)


def _calling(method: str, hook: str, average):
    """A callback that calls evaluate() or predict() of a few elements, with the callback."""

    def call(self, number, logs=None):
        data = X[:8] if method == "predict" else PAIRS.take(8).batch(8)
        getattr(self.model, method)(data, callbacks=[average], verbose=0)

    return type("Calling", (keras.callbacks.Callback,), {hook: call})()


def called_in_an_epoch(validates):
    """Other calls do not change what the epoch's metrics are: those of all ranks together."""
    values = np.random.default_rng(rank).normal(size=(64, 1)).astype("float32")
    targets = (values > 0.5 * rank).astype("float32")
    model, metric = _model(), keras.metrics.AUC
    model.compile(keras.optimizers.SGD(0.0), "mae", metrics=[metric(name="auc", from_logits=True)])
    average = hvd.callbacks.MetricAverageCallback()
    part = Dataset.from_tensor_slices((values, targets)).batch(16)
    options = {"validation_data": part.take(1)} if validates else {}
    want = model.fit(part, callbacks=[average], verbose=0, **options).history["auc"]
    hooks = [("evaluate", "on_epoch_end"), ("predict", "on_train_batch_end")]
    for method, hook in hooks:
        calling = _calling(method, hook, average)
        got = model.fit(part, callbacks=[calling, average], verbose=0, **options).history["auc"]
        assert np.allclose(got, want, atol=1e-6), (rank, method, got, want)
    report(done=True)


def warm_up_again():
    """A warm-up that is given to a second fit() counts that one's batches."""
    rates = []
    record = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: rates.append(
            float(tf.convert_to_tensor(model.optimizer.learning_rate))
        )
    )
    warm_up = hvd.callbacks.LearningRateWarmupCallback(0.5, warmup_epochs=1)
    model = _model()
    for batch_size in (4, 16):
        rates.clear()
        data = PAIRS.shard(size, rank).batch(batch_size)
        model.fit(data, callbacks=[warm_up, record], verbose=0)
        count = len(data)
        want = [(1 + (i + 1) / count * (size - 1)) / size * 0.5 for i in range(count)]
        assert np.allclose(rates, want), (rates, want)
    report(done=True)


def automatic_steps_per_execution():
    """Keras 2 would choose their number on each rank by its speed."""
    model = _model(steps_per_execution="auto")
    data = PAIRS.shard(size, rank).batch(4)
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.LearningRateWarmupCallback(0.5, warmup_epochs=2),
    ]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        model.fit(data, epochs=3, callbacks=callbacks, verbose=0)
    told = [str(one.message) for one in warned if "steps_per_execution" in str(one.message)]
    assert len(told) == 1 and "another number on each rank" in told[0], told
    assert int(model._steps_per_execution) == 1 and not model.autotune_steps_per_execution
    hvd.check_ranks_equal(model.trainable_variables)
    report(done=True)


class Accumulating(keras.Model):
    """Reduces the sum of two steps' gradients by itself."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.abs(self(x) - y))
        (grad,) = tape.gradient(loss, self.trainable_variables)
        self.sum.assign_add(grad)
        self.turn.assign_add(1)
        tf.cond(self.turn % 2 == 0, self._update, lambda: 0.0)
        return {"loss": loss}

    def _update(self):
        (reduced,) = hvd.grouped_allreduce([self.sum])
        self.trainable_variables[0].assign_sub(0.01 * reduced)
        self.sum.assign(tf.zeros_like(self.sum))
        return 0.0


def own_accumulation():
    """The first batch reduces nothing, and the warning does not say that something is wrong."""
    inputs = keras.Input((1,))
    model = Accumulating(inputs, keras.layers.Dense(1, use_bias=False)(inputs))
    model.sum, model.turn = (tf.Variable(x, trainable=False) for x in (tf.zeros([1, 1]), 0))
    model.compile(keras.optimizers.SGD(0.01))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        model.fit(
            PAIRS.shard(size, rank).batch(4),
            callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
            verbose=0,
        )
    told = [str(one.message) for one in warned if "reduced no gradients" in str(one.message)]
    assert len(told) == 1 and "unless a later one does" in told[0], told
    hvd.check_ranks_equal(model.trainable_variables)
    report(done=True)


@without_init
def schedule_without_init():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mae")
    halve = hvd.callbacks.LearningRateScheduleCallback(0.5, lambda epoch: 0.5)
    model.fit(X, X, verbose=0, callbacks=[halve])
    assert float(tf.convert_to_tensor(model.optimizer.learning_rate)) == 0.25
    report(done=True)
