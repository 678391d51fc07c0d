"""What ranks do in test_replicas.py: each has two devices, by tf.distribute.MirroredStrategy."""

import warnings

import keras_modes
import numpy as np
import tensorflow as tf
from harness import rank, report, size, without_init

import smddp_tf as hvd
import smddp_tf.keras as hvd_keras

keras = tf.keras
STEPS, BATCH = 4, 8  # a batch of all ranks' replicas


@without_init
def fit_and_loop():
    cpu = tf.config.list_physical_devices("CPU")[0]  # it becomes two devices
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    hvd.init()
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    warnings.filterwarnings("error", "an optimizer wrapped by DistributedOptimizer")
    _fit(strategy, *_data())
    _loop(strategy, *_data())
    report()


def _data():
    x = np.random.RandomState(1).randn(STEPS * BATCH, 4).astype("float32")
    return x, np.sin(x.sum(1, keepdims=True))


def _own(values):
    part = BATCH // size
    steps = values.reshape(STEPS, BATCH, -1)
    return steps[:, rank * part : (rank + 1) * part].reshape(STEPS * part, -1)


class OwnApply(keras.optimizers.SGD):
    """With an apply_gradients() of its own, which is given the reduced gradients."""

    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        pairs = [(0.5 * grad, variable) for grad, variable in grads_and_vars]
        return super().apply_gradients(pairs, *args, **kwargs)


def _model(optimizer):
    keras.utils.set_random_seed(3)
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(8, activation="tanh")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(optimizer, "mse")
    return model


def _weights(model):
    return [np.array(tf.convert_to_tensor(v), "float64") for v in model.trainable_variables]


def _check(model, alone, what):
    own = np.concatenate([w.ravel() for w in _weights(model)])
    gathered = np.asarray(hvd.allgather(own[None]))
    assert (gathered == gathered[0]).all(), f"{what}: the ranks' weights differ"
    want = np.concatenate([w.ravel() for w in alone])
    assert np.abs(own - want).max() < keras_modes.ADAM_TOLERANCE, (what, np.abs(own - want).max())


def _fit(strategy, x, y):
    fits = {"epochs": 2, "shuffle": False, "verbose": 0}
    for make in (
        lambda: keras.optimizers.SGD(0.1, momentum=0.5),
        lambda: keras.optimizers.Adam(0.01),
        lambda: OwnApply(0.1),
    ):
        alone = _model(make())
        alone.fit(x, y, batch_size=BATCH, **fits)
        with strategy.scope():
            model = _model(hvd_keras.DistributedOptimizer(make()))
        start = hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)
        model.fit(_own(x), _own(y), batch_size=BATCH // size, callbacks=[start], **fits)
        model.make_train_function(force=True)  # another trace
        alone.train_on_batch(x[:BATCH], y[:BATCH])
        part = BATCH // size
        model.train_on_batch(_own(x)[:part], _own(y)[:part])
        _check(model, _weights(alone), "fit")


def _loop(strategy, x, y):
    alone = _model(keras.optimizers.SGD(0.1))
    alone.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    with strategy.scope():
        model, optimizer = _model("sgd"), keras.optimizers.SGD(0.1)
    hvd.broadcast_variables(model.variables, 0)

    def replica_step(rows, wanted):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            error = tf.square(model(rows, training=True) - wanted)
            loss = tf.nn.compute_average_loss(error, global_batch_size=BATCH // size)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    @tf.function
    def step(rows, wanted):
        strategy.run(replica_step, args=(rows, wanted))

    batches = tf.data.Dataset.from_tensor_slices((_own(x), _own(y))).batch(BATCH // size)
    for rows, wanted in strategy.experimental_distribute_dataset(batches):
        step(rows, wanted)
    _check(model, _weights(alone), "loop")
