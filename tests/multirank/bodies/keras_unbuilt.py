"""What ranks do in test_keras_agreement.py with models that the first batch builds."""

import functools
import warnings

import keras_modes
import numpy as np
import tensorflow as tf
from harness import rank, report, size

import smddp_tf.keras as hvd

keras = tf.keras
C = hvd.callbacks
N = 6 * size
_rng = np.random.RandomState(5)
SERIES = _rng.randn(N, 4, 3).astype("float32")
Y = _rng.randn(N, 1).astype("float32")
ROWS = _rng.randn(N * 2, 3).astype("float32")


class Recurrent(keras.Model):
    """A state for each element of the batch, so only the batch's own size will do."""

    def __init__(self):
        super().__init__()
        self.cell = keras.layers.LSTM(5, stateful=True)
        self.out = keras.layers.Dense(1)

    def call(self, inputs):
        return self.out(self.cell(inputs))


class Headed(keras.Model):
    """A head that only training calls."""

    def __init__(self):
        super().__init__()
        self.body = keras.layers.Dense(4, activation="tanh")
        self.out, self.head = keras.layers.Dense(1), keras.layers.Dense(1)

    def call(self, inputs, training=False):
        hidden = self.body(inputs[:, 0])
        return self.out(hidden) + (self.head(hidden) if training else 0.0)


class OwnStep(Headed):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


class Ragged(keras.Model):
    def __init__(self):
        super().__init__()
        self.out = keras.layers.Dense(1)

    def call(self, inputs):
        return self.out(tf.reduce_sum(inputs, axis=1))


def _train(kind, distributed, x, eager, batch):
    keras.utils.set_random_seed(3 + distributed * rank)
    model = kind()
    optimizer = keras.optimizers.Adam(0.01)
    callbacks = []
    if distributed:
        optimizer = hvd.DistributedOptimizer(optimizer)
        callbacks = [C.BroadcastGlobalVariablesCallback(0)]
    model.compile(optimizer, "mse", run_eagerly=eager)
    rows = np.arange(N).reshape(-1, batch)
    if distributed:
        rows = rows[:, rank * batch // size : (rank + 1) * batch // size]
    rows = rows.reshape(-1)
    data = tf.data.Dataset.from_tensor_slices((tf.gather(x, rows), Y[rows]))
    data = data.batch(batch // size if distributed else batch, drop_remainder=True)
    model.fit(data, epochs=2, verbose=0, shuffle=False, callbacks=callbacks)
    return model


def _check_equal(kind, alone, model):
    keras_modes.assert_equal_on_all_ranks(model, kind.__name__)
    variables = model.trainable_variables
    names = {v.path if keras_modes.KERAS3 else v.name for v in variables}
    assert len(names) == alone["trainable"] > 1
    for a, b in zip(alone["weights"], model.get_weights(), strict=True):
        # The states of the recurrent layer are those of each rank's own elements.
        if a.shape == b.shape and not a.shape == (2, 5):
            # Adam divides by the gradient's own size; 6 steps of 0.01
            assert np.abs(a - b).max() < 1e-4, (kind.__name__, a, b)
    slots = [
        np.asarray(tf.convert_to_tensor(v)).tobytes() for v in C._base.variables_of(model.optimizer)
    ]
    slots = hvd.allgather_object(slots)
    assert all(one == slots[0] for one in slots), kind.__name__


def _inputs(kind, ragged):
    if not ragged:
        return tf.constant(SERIES)
    return tf.RaggedTensor.from_row_lengths(tf.constant(ROWS), [1, 3] * (N // 2))


def _alone(kind):
    """What a single process makes, of ragged inputs where plain Keras takes them.

    Keras 3 does not in fit() of every version.
    """
    ragged = kind is Ragged
    try:
        model = _train(kind, False, _inputs(kind, ragged), False, 2 * size)
    except Exception as error:
        if not (ragged and keras_modes.KERAS3):
            raise
        print("plain Keras refuses ragged inputs:", error)
        ragged = False
        model = _train(kind, False, _inputs(kind, ragged), False, 2 * size)
    trainable = len(model.trainable_variables)
    return {"ragged": ragged, "weights": model.get_weights(), "trainable": trainable}


class Late(keras.layers.Layer):
    extra = None

    def call(self, inputs):
        return inputs


class AddsOne(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        layer = self.model.layers[0]
        if layer.extra is None:
            layer.extra = keras.layers.Dense(2)
            layer.extra.build((None, 2))


def _variables_made_later():
    """Those that a built layer makes later are made equal, too; Keras 3 refuses them."""
    keras.utils.set_random_seed(rank)
    model = keras.Sequential([keras.Input((3,)), Late(), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", run_eagerly=True)
    callbacks = [C.BroadcastGlobalVariablesCallback(0), AddsOne()]
    model.fit(SERIES[:4, 0], Y[:4], verbose=0, callbacks=callbacks)
    keras_modes.assert_equal_on_all_ranks(model.layers[0], "late")


def _layers_added_between_fits():
    """They are broadcast by the next fit() with the same callback, as is a new optimizer."""
    keras.utils.set_random_seed(rank)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, name="first")])
    callbacks = [C.BroadcastGlobalVariablesCallback(0)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for units in (3, 2, 1):
            model.add(keras.layers.Dense(units))
            model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), "mse")
            model.fit(SERIES[:4, 0], Y[:4], verbose=0, callbacks=callbacks)
            keras_modes.assert_equal_on_all_ranks(model, f"with {units} units")


def models_that_the_first_batch_builds():
    kinds = (Recurrent, Headed, OwnStep, Ragged)
    jobs = {kind.__name__: functools.partial(_alone, kind) for kind in kinds}
    alone = keras_modes.divided(jobs)
    for kind in kinds:
        own = alone[kind.__name__]
        for eager in (False, True)[: 1 + (kind is OwnStep)]:
            x = _inputs(kind, own["ragged"])
            _check_equal(kind, own, _train(kind, True, x, eager, 2 * size))
    if not keras_modes.KERAS3:
        _variables_made_later()
    _layers_added_between_fits()
    report(done=True)
