"""What ranks do in test_unknown_lengths.py: Dense layers on sequences of any length."""

import keras_modes
import numpy as np
import tensorflow as tf
from harness import rank, report, size

import smddp_tf as hvd
import smddp_tf.keras as hvd_keras

keras = tf.keras
WIDTH, LAYERS = 16, 4  # a kernel has 1024 bytes


def _model(length, layers=LAYERS):
    """Its kernels' gradients have an unknown static dimension where the length is None."""
    inputs = x = keras.Input((length, WIDTH))
    for _ in range(layers):
        x = keras.layers.Dense(WIDTH, activation="tanh", use_bias=False)(x)
    return keras.Model(inputs, keras.layers.Dense(1, use_bias=False)(x))


def _batch(number, length, own=slice(None)):
    x = np.random.RandomState(number).randn(2 * size, length, WIDTH).astype("float32")
    return x[own], np.sin(x.sum(-1, keepdims=True))[own]


def _compiled(optimizer, length=None, layers=LAYERS, **options):
    keras.utils.set_random_seed(3 + rank)
    model = _model(length, layers)
    model.compile(optimizer, "mse", **options)
    hvd.broadcast_variables(model.variables, 0)
    return model


def _buckets_of_fit(length):
    signature = tf.TensorSpec((None, length, WIDTH)), tf.TensorSpec((None, length, 1))
    batches = [_batch(0, 6, slice(2 * rank, 2 * rank + 2))]
    data = tf.data.Dataset.from_generator(lambda: batches, output_signature=signature)
    model = _compiled(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.1)), length)
    before = hvd.stats()["buckets"]
    model.fit(data, verbose=0)
    return hvd.stats()["buckets"] - before


def buckets():
    """A kernel is as large as a bucket, so each gets one, whether its length is declared or not."""
    _buckets_of_fit(6)  # a job's first fit() has fewer exchanges of other things
    declared = _buckets_of_fit(6)
    found = _buckets_of_fit(None)
    assert found == declared > LAYERS, (found, declared)
    report()


def equality():
    """Batches of other lengths at each step, in jit and without, as one process trains."""
    lengths = [3, 5, 4, 5]
    worst = {}
    for jit in (False, True):
        options = {"layers": 1, "jit_compile": jit}
        alone = _compiled(keras.optimizers.SGD(0.1), **options)
        model = _compiled(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.1)), **options)
        for number, length in enumerate(lengths):
            alone.train_on_batch(*_batch(number, length))
            model.train_on_batch(*_batch(number, length, slice(2 * rank, 2 * rank + 2)))
        keras_modes.assert_equal_on_all_ranks(model, f"jit={jit}")
        worst[f"jit={jit}"] = max(
            float(np.abs(np.asarray(a) - np.asarray(b)).max())
            for a, b in zip(alone.weights, model.weights, strict=True)
        )
    report(worst=worst)


def lengths_that_differ_by_rank():
    """Once a rank has seen two, TensorFlow traces a length as unknown: not at the same step."""
    optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.1))
    model = _compiled(optimizer, layers=1)

    @tf.function(reduce_retracing=True)
    def gradients(x, y):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        return tape.gradient(loss, model.trainable_variables)

    for number, length in enumerate([3, 5, 6, 6] if rank else [3, 3, 5, 6]):
        x, y = map(tf.constant, _batch(number, length, slice(rank, rank + 1)))
        model.train_on_batch(x, y)
        for one in gradients(x, y):
            gathered = hvd.allgather(one[None])
            assert np.array_equal(gathered[0], gathered[-1]), number
    report()
