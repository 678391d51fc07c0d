"""What ranks do in test_silent_non_reduction.py, with Keras."""

import copy
import pickle
import warnings

import numpy as np
import tensorflow as tf
from checks import raises
from harness import rank, report, size

import smddp_tf.keras as hvd
from smddp_tf.errors import RanksDifferError

keras = tf.keras
C = hvd.callbacks
KERAS3 = not hasattr(keras.optimizers.Optimizer, "aggregate_gradients")
X = np.random.RandomState(rank).randn(24, 3).astype("float32")
Y = np.random.RandomState(9 + rank).randn(24, 2).astype("float32")


def _sgd():
    return keras.optimizers.SGD(0.1, momentum=0.5)


def _make(optimizer, kind=keras.Sequential, run_eagerly=True):  # most need no trace
    keras.utils.set_random_seed(3)
    layers = keras.layers
    model = kind(
        [
            keras.Input((3,)),
            layers.Dense(4),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(2),
        ]
    )
    model.compile(optimizer, "mse", run_eagerly=run_eagerly)
    return model


def _fit(model, *callbacks, **options):
    """The warnings of a fit, and what CheckRanksEqual said."""
    callbacks = [C.BroadcastGlobalVariablesCallback(0), *callbacks]
    said = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model.fit(X, Y, batch_size=12, verbose=0, shuffle=False, callbacks=callbacks, **options)
        except RanksDifferError as error:
            said = str(error)
    return [str(w.message) for w in caught if w.category is RuntimeWarning], said


def _nothing_is_said_if_all_is_well():
    """Whatever the order of callbacks and the accumulation."""
    for options in ({}, {"backward_passes_per_step": 2}):
        model = _make(hvd.DistributedOptimizer(_sgd(), **options), run_eagerly=False)
        told = _fit(model, C.CheckRanksEqual(every=2), C.CheckRanksEqual(), epochs=2)
        assert told == ([], ""), told
    model = _make(hvd.DistributedOptimizer(_sgd()))
    callbacks = [C.CheckRanksEqual(also_statistics=True), C.BroadcastGlobalVariablesCallback(0)]
    try:
        model.fit(X, Y, batch_size=12, verbose=0, callbacks=callbacks)
        text = ""  # other moving statistics were not seen
    except RanksDifferError as error:
        text = str(error)
    assert "moving_mean differs on rank" in text and "kernel" not in text, text


def _wrapped_late():
    # After fit(): takes effect.
    model = _make(_sgd(), run_eagerly=False)
    model.fit(X, Y, batch_size=12, verbose=0)
    hvd.DistributedOptimizer(model.optimizer)
    told = _fit(model, C.CheckRanksEqual(every=1))
    assert told == ([], ""), told
    # After a loop's step was traced: said at once. A step of a loaded optimizer says nothing.
    optimizer, w = _sgd(), tf.Variable([1.0, 2.0])

    @tf.function
    def my_step(g):
        optimizer.apply_gradients([(g, w)])

    my_step(tf.constant([1.0, 1.0]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hvd.DistributedOptimizer(optimizer)
    said = [str(c.message) for c in caught]
    assert len(said) == 1 and "my_step" in said[0], said
    my_step(tf.constant([1.0, 1.0]) * rank)
    with raises(RanksDifferError, "differs on rank"):  # local gradients
        hvd.check_ranks_equal([w])


class Two(keras.Sequential):
    """Has a second optimizer, for the first layer."""

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(data[0], training=True) - data[1]))
        v = self.trainable_variables
        pairs = list(zip(tape.gradient(loss, v), v, strict=True))
        self.optimizer.apply_gradients(pairs[2:])
        self.second.apply_gradients(pairs[:2])
        return {"loss": loss}


class ByHand(Two):
    """Its train_step passes the optimizer by."""

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(data[0], training=True) - data[1]))
        variables = self.trainable_variables
        for v, g in zip(variables, tape.gradient(loss, variables), strict=True):
            v.assign(v - 0.1 * g)
        return {"loss": loss}


def _optimizers_that_are_not_wrapped():
    model = _make(hvd.DistributedOptimizer(_sgd()), Two)
    model.second = _sgd()
    told, said = _fit(model, C.CheckRanksEqual())
    assert len(told) == 1 and "dense/kernel differs on rank" in told[0], told
    assert "not wrapped by hvd.DistributedOptimizer" in told[0] and "dense_1" not in told[0]
    assert "after the first batch the ranks differ in" in said and "dense/kernel" in said, said
    told, said = _fit(_make(hvd.DistributedOptimizer(_sgd()), ByHand))
    assert len(told) == 1 and "train_step that assigns" in told[0], told
    # Models made from a configuration have plain optimizers.
    model = _make(hvd.DistributedOptimizer(_sgd()))
    copied = keras.models.clone_model(model)
    restored = type(model.optimizer).from_config(model.optimizer.get_config())
    copied.compile(restored, "mse", run_eagerly=True)
    told, said = _fit(copied)
    assert len(told) == 1 and "reduced no gradients" in told[0], told
    copied = keras.models.clone_model(model)
    copied.compile_from_config(model.get_compile_config())
    assert len(_fit(copied)[0]) == 1


def _a_callback_for_several_fits():
    """Other models are broadcast too; of the same model each fit() is looked at."""
    broadcast = C.BroadcastGlobalVariablesCallback(0)

    def fit(model, seed=None, optimizer=None):
        if seed is not None:
            keras.utils.set_random_seed(seed + rank)
            model.set_weights([np.random.randn(*w.shape) for w in model.get_weights()])
        model.compile(optimizer or hvd.DistributedOptimizer(_sgd()), "mse", run_eagerly=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(X, Y, batch_size=12, verbose=0, callbacks=[broadcast])
        return [str(w.message) for w in caught if w.category is RuntimeWarning]

    models = [_make(_sgd()), _make(_sgd())]
    for seed, model in enumerate(models):
        assert fit(model, seed) == []
        hvd.check_ranks_equal(model.trainable_variables)
    assert fit(models[0]) == [] and fit(models[1]) == []
    hvd.check_ranks_equal(models[0].trainable_variables)
    told = fit(models[1], optimizer=_sgd())
    assert "reduced no gradients" in told[0], told
    (told,) = fit(models[0], seed=7)
    assert "or they differed before; a new callback" in told and "kernel differs" in told, told


def _copies():
    """Copies of the optimizer reduce, and are optimizers of their own."""
    ways = [copy.copy]
    if KERAS3:
        ways += [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))]
    for way in ways:
        first = hvd.DistributedOptimizer(_sgd(), compression=hvd.Compression.bf16)
        second = way(first)
        assert second is not first and type(second) is type(first)
        second.learning_rate = 1.0
        w = tf.Variable([1.0, 2.0])
        second.apply_gradients([(tf.constant([1.0, 1.0]) * rank, w)])
        want = np.array([1.0, 2.0]) - (size - 1) / 2
        assert np.allclose(w, want) and (not KERAS3 or int(first.iterations) == 0), w
        summed = way(hvd.DistributedOptimizer(_sgd(), backward_passes_per_step=2))
        summed.learning_rate = 1.0
        for _ in range(2):
            summed.apply_gradients([(tf.constant([1.0, 1.0]), w)])
        assert np.allclose(w, want - 2) and "passes" not in summed.name, (w, summed.name)
        assert np.isclose(float(first.learning_rate), 0.1 if KERAS3 else 1.0)


class OwnRate(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.optimizer.learning_rate = 0.1 + 0.1 * (rank == size - 1)


def _local_layers_and_rates():
    """A layer that is local on purpose, and other rates and options."""
    model = _make(hvd.DistributedOptimizer(_sgd()))
    for variable in model.layers[0].trainable_variables:
        model.optimizer.register_local_var(variable)
    assert _fit(model, C.CheckRanksEqual()) == ([], "")
    assert not np.array_equal(*hvd.allgather(model.layers[0].kernel[None]).numpy()[:2])
    model = _make(hvd.DistributedOptimizer(_sgd()))
    _, said = _fit(model, OwnRate(), C.CheckRanksEqual())
    assert "after epoch 1" in said and "learning rate of SGD: 0.1" in said, said
    model = _make(hvd.DistributedOptimizer(_sgd(), scale_local_gradients=rank == 0))
    _, said = _fit(model, C.CheckRanksEqual(every=1))
    assert "scale_local_gradients of SGD: True on rank 0; False on rank" in said, said


def drift_is_noticed():
    _nothing_is_said_if_all_is_well()
    _wrapped_late()
    _optimizers_that_are_not_wrapped()
    _a_callback_for_several_fits()
    _copies()
    _local_layers_and_rates()
    report(done=True)
