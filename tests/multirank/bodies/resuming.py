"""What ranks do in test_resuming.py."""

import os

import numpy as np
import tensorflow as tf
from checks import raises
from harness import OUT, rank, report

import smddp_tf.keras as hvd

keras = tf.keras
KERAS3 = not hasattr(keras.optimizers.Optimizer, "aggregate_gradients")
X = np.random.RandomState(rank).randn(24, 3).astype("float32")
Y = np.random.RandomState(9 + rank).randn(24, 2).astype("float32")


def _make(optimizer):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(optimizer, "mse", run_eagerly=True)
    return model


def _fit(model):
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(X, Y, batch_size=6, verbose=0, shuffle=False, callbacks=[broadcast])
    return np.concatenate([w.ravel() for w in model.get_weights()])


def _sgd():
    return keras.optimizers.SGD(0.1, momentum=0.5, name="mine")


def _saved(model, file):
    if rank == 0:
        model.save(str(OUT / file))
    hvd.barrier()
    return str(OUT / file)


def _near(got, want):
    return np.allclose(got, want, rtol=0, atol=1e-6)


def _check_resumed(model, file, first, want, averages):
    """`first` and `want` are the weights when the file was written, and one fit later."""
    resumed = hvd.load_model(file)
    assert resumed.optimizer.name == "mine"
    assert _near(_fit(resumed), want), (averages, file)
    again = _saved(resumed, "again" + os.path.splitext(file)[1])
    resumed = hvd.load_model(again)
    assert resumed.optimizer.get_config()["name"] == model.optimizer.get_config()["name"]
    # Keras's own function; then the optimizer is wrapped as any other.
    resumed = keras.models.load_model(file)
    hvd.DistributedOptimizer(resumed.optimizer)
    assert _near(_fit(resumed), want), (averages, file)
    # Without this library it trains too.
    plain = keras.models.load_model(file)
    assert not np.allclose(_fit(plain), first)
    # What is given counts.
    other = hvd.load_model(
        file, backward_passes_per_step=2, average_aggregated_gradients=not averages
    )
    assert not np.allclose(_fit(other), want, rtol=0, atol=1e-3)


def _passes(averages):
    """Returns the weights after one and two fits, and a file written between."""
    options = {"backward_passes_per_step": 2, "average_aggregated_gradients": averages}
    model = _make(hvd.DistributedOptimizer(_sgd(), **options))
    first = _fit(model)
    # Keras 3 itself cannot go on training from the older format.
    ends = [".keras"] if averages or KERAS3 else [".keras", ".h5"]
    files = [_saved(model, f"{averages}{end}") for end in ends]
    want = _fit(model)
    assert model.optimizer.name == "mine"
    for file in files:
        _check_resumed(model, file, first, want, averages)
    restored = type(model.optimizer).from_config(model.optimizer.get_config())
    hvd.DistributedOptimizer(restored)
    assert _near(_fit(_make(restored)), first)
    return first, want, files[0]


def _accumulation_of_keras(first):
    """It is a mean, as ever."""
    accumulating = keras.optimizers.SGD(0.1, momentum=0.5, gradient_accumulation_steps=2)
    assert _near(_fit(_make(hvd.DistributedOptimizer(accumulating))), first)
    three = keras.optimizers.SGD(0.1, gradient_accumulation_steps=3)
    with raises(ValueError, "gradient_accumulation_steps=3; they mean the same"):
        hvd.DistributedOptimizer(three, backward_passes_per_step=2)


def _without_the_optimizer(file):
    model = hvd.load_model(file, compile=False)
    assert getattr(model, "optimizer", None) is None
    assert np.isfinite(model.predict(X, verbose=0)).all()


def _with_code_in_the_file():
    double = keras.layers.Lambda(lambda t: t * 2.0)
    model = keras.Sequential([keras.Input((3,)), double, keras.layers.Dense(2)])
    model.compile(hvd.DistributedOptimizer(_sgd()), "mse", run_eagerly=True)
    file = _saved(model, "lambda.keras")
    with raises(ValueError, "safe_mode"):
        hvd.load_model(file)
    _fit(hvd.load_model(file, safe_mode=False))


def goes_on():
    _, summed, _ = _passes(averages=False)
    first, averaged, file = _passes(averages=True)
    assert not np.allclose(averaged, summed, rtol=0, atol=1e-3)
    if KERAS3:
        _accumulation_of_keras(first)
    _without_the_optimizer(file)
    _with_code_in_the_file()
    report(done=True)
