"""What ranks do in test_keras_callbacks.py."""

import glob
import importlib.util
import os
import warnings

import keras_modes
import numpy as np
import tensorflow as tf
from checks import raises
from harness import OUT, rank, report, size
from tensorflow.python.summary.summary_iterator import summary_iterator

import smddp_tf.keras as hvd

keras = tf.keras
C = hvd.callbacks
STEPS = 6 * 2  # batches of two epochs


class Record(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.rates, self.logs = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.rates.append(float(tf.convert_to_tensor(self.model.optimizer.learning_rate)))

    def on_epoch_end(self, epoch, logs=None):
        self.logs.append({k: float(v) for k, v in logs.items()})


def _sgd(rate, **options):
    return hvd.DistributedOptimizer(keras.optimizers.SGD(rate, **options))


def _fit(callbacks, epochs=4, optimizer=None, validate=False, **compiled):
    optimizer = optimizer or _sgd(0.1 * size)
    keras.utils.set_random_seed(rank)
    model = keras_modes.Mode().model()
    model.compile(optimizer, keras_modes.loss_object(), metrics=["accuracy"], **compiled)
    rows = keras_modes.local_slice()
    x, y = keras_modes.X[rows], keras_modes.Y[rows]
    options = {"batch_size": 24 // size, "epochs": epochs, "verbose": 0, "shuffle": False}
    options["validation_data"] = (x[:10], y[:10]) if validate else None
    return model, model.fit(x, y, callbacks=callbacks, **options)


def _metrics_and_warm_up():
    """Metrics are the same everywhere, and the checkpoint sees them."""
    record = Record()
    best = str(OUT / "best.keras")
    seen = []
    only_zero = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(epoch))
    callbacks = [
        C.BroadcastGlobalVariablesCallback(0),
        C.MetricAverageCallback(),
        C.LearningRateWarmupCallback(0.1 * size, warmup_epochs=2, verbose=1),
        record,
        C.BestModelCheckpoint(monitor="val_loss", filepath=best),
        C.RankZero(only_zero),
    ]
    _, history = _fit(callbacks, validate=True)
    assert len(hvd.allgather_object(str(record.logs))) == size
    assert len(set(hvd.allgather_object(str(record.logs)))) == 1
    assert {"loss", "accuracy", "val_loss", "val_accuracy", "lr"} <= set(record.logs[0])
    assert history.history["loss"] == [logs["loss"] for logs in record.logs]
    assert len(seen) == (4 if rank == 0 else 0)
    hvd.barrier()
    assert os.path.exists(best)
    # The ramp: from 0.1 to 0.1 * size over 12 batches, then flat.
    want = [0.1 * (1 + (i + 1) / STEPS * (size - 1) * 1.0) for i in range(STEPS)]
    assert np.allclose(record.rates[:STEPS], want, rtol=1e-5), (record.rates[:STEPS], want)
    assert np.allclose(record.rates[STEPS:], 0.1 * size)


class OwnVariables(keras.layers.Layer):
    """Has variables that Keras 3 does not count as weights, and one for each rank."""

    def __init__(self):
        super().__init__()
        self.projection = tf.Variable(tf.random.normal([12, 12]), trainable=False)
        self.listed = [{"scale": tf.Variable(tf.random.normal([]))}, "text"]
        self.module = tf.Module()
        self.module.shift = tf.Variable(tf.random.normal([12]))
        self.noise = tf.random.Generator.from_seed(3)
        self.label = tf.Variable("rank", trainable=False)
        self.own = tf.Variable(float(rank), trainable=False)

    def call(self, x):
        scaled = tf.matmul(x, self.projection) * self.listed[0]["scale"]
        return scaled + self.module.shift + 1e-3 * self.noise.normal([12])


def _variables_that_keras_does_not_count():
    keras.utils.set_random_seed(rank)
    layer = OwnVariables()
    model = keras.Sequential([keras.Input((12,)), layer, keras.layers.Dense(5)])
    model.compile(_sgd(0.1), keras_modes.loss_object())
    options = {"local_variables": [layer.own]}
    if not keras_modes.KERAS3:  # they count here, and this one cannot be sent
        options["local_variables"].append(layer.label)
    model.fit(
        keras_modes.X,
        keras_modes.Y,
        callbacks=[C.BroadcastGlobalVariablesCallback(0, **options)],
        verbose=0,
    )
    values = [layer.projection, layer.listed[0]["scale"], layer.module.shift]
    alike = hvd.allgather_object([v.numpy().tobytes() for v in values])
    assert all(one == alike[0] for one in alike)
    assert len(set(hvd.allgather_object(layer.noise.state.numpy().tobytes()))) == size
    assert layer.own.numpy() == rank


def _schedules_and_momentum():
    """A staircase, and momentum that goes with it.

    One batch of zero gradient moves by m * ratio * v.
    """
    record = Record()
    broadcast = C.BroadcastGlobalVariablesCallback(0)
    _fit([broadcast, C.LearningRateScheduleCallback(0.2, lambda epoch: 0.5**epoch), record])
    assert np.allclose(record.rates, np.repeat([0.2, 0.1, 0.05, 0.025], 6), rtol=1e-5), record.rates
    optimizer = _sgd(0.2, momentum=0.9)
    model, _ = _fit([C.BroadcastGlobalVariablesCallback(0)], optimizer=optimizer, epochs=1)
    # A number is a constant factor, and says so, as newer Horovods let it decay.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        C.LearningRateScheduleCallback(0.2, 1.0)
        callback = C.LearningRateScheduleCallback(0.2, lambda epoch: 0.5)
        constant = C.LearningRateScheduleCallback(0.2, 0.5, start_epoch=3)
    (warning,) = caught
    assert "multiplier=0.5 is a constant factor from epoch 3 on" in str(warning.message)
    assert [constant.multiplier(epoch) for epoch in (3, 4, 9)] == [0.5] * 3
    callback.set_model(model)
    callback.on_epoch_begin(0)
    velocity = optimizer.momentums[0]
    before = velocity.numpy().copy()
    callback.on_train_batch_begin(0)
    assert np.allclose(velocity.numpy(), before * 0.5) and np.abs(before).max() > 0
    # A schedule in the optimizer cannot be overruled.
    with raises(ValueError, "schedule"):
        _fit([C.LearningRateWarmupCallback(0.1)], optimizer=_sgd(keras_modes.schedule()))


class Pretend(keras.callbacks.Callback):
    """Rank 0 improves for ever; on the average it gets worse from epoch 2 on."""

    def on_epoch_end(self, epoch, logs=None):
        logs["val_loss"] = -epoch * 1.0 if rank == 0 else (0.0 if epoch < 2 else 5.0 * epoch)


class StopOne(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = rank == size - 1 and epoch == 1


def _stopping():
    """All ranks stop together, on the average."""
    stopping = C.EarlyStopping("val_loss", patience=1, mode="min")
    broadcast = C.BroadcastGlobalVariablesCallback(0)
    _, history = _fit([broadcast, Pretend(), stopping], epochs=9)
    assert len(history.epoch) == 3, history.epoch
    _, history = _fit([StopOne(), C.EarlyStopping("loss", patience=50)], epochs=9)
    assert len(history.epoch) == 2, history.epoch


def _throughput():
    """Every rank has the same numbers, and TensorBoard has them."""
    folder = str(OUT / "board")
    throughput = C.Throughput(24 // size, log_dir=folder, every=2)
    _, history = _fit([throughput], epochs=2, steps_per_execution=2)
    rates = history.history["samples_per_second"]
    assert len(set(hvd.allgather_object(str(rates)))) == 1 and min(rates) > 10, rates
    assert all(0 < share < 1 for share in history.history["wait_share"])
    assert throughput._all_batches == 12
    hvd.barrier()
    if rank == 0:
        files = glob.glob(folder + "/*")
        tags = {v.tag for f in files for e in summary_iterator(f) for v in e.summary.value}
        assert {"samples_per_second", "step_ms", "wait_share"} <= tags, tags


def _in_tf_keras_beside_keras_3():
    """Keras's own callbacks, as derived from, for a model of the other Keras."""
    if not keras_modes.KERAS3 or not importlib.util.find_spec("tf_keras"):
        return
    other = importlib.import_module("tf_keras")
    model = other.Sequential([other.Input((keras_modes.FEATURES,)), other.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(other.optimizers.SGD(0.1)), "mse")
    callbacks = [
        C.BroadcastGlobalVariablesCallback(0),
        C.MetricAverageCallback(),
        C.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, min_delta=1e9),
        C.EarlyStopping(monitor="loss", patience=2, min_delta=1e9),
    ]
    x = keras_modes.X[rank::size]
    history = model.fit(x, x[:, :1], epochs=5, verbose=0, callbacks=callbacks).history
    assert len(history["loss"]) == 3, history
    assert float(tf.convert_to_tensor(model.optimizer.learning_rate)) < 0.1
    hvd.check_ranks_equal(model.trainable_variables)


def all_callbacks():
    _variables_that_keras_does_not_count()
    _metrics_and_warm_up()
    _schedules_and_momentum()
    _stopping()
    _throughput()
    _in_tf_keras_beside_keras_3()
    report(done=True)
