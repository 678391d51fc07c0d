"""What ranks do in test_keras_agreement.py: what they decide, hold and restore alike."""

import os

import numpy as np
import tensorflow as tf
from checks import raises
from harness import OUT, rank, report, size

import smddp_tf.keras as hvd

keras = tf.keras
C = hvd.callbacks
_rng = np.random.RandomState(rank)
X = _rng.randn(40, 3).astype("float32")
Y = _rng.randn(40, 1).astype("float32")


def _fit(callbacks, epochs=6, rate=0.0, x=X, **compiled):
    """The model, and how many batches and epochs it had: as many on all ranks."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(rate))
    model.compile(optimizer, "mse", **compiled)
    batches = []
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda b, logs: batches.append(b))
    options = {"batch_size": 4, "epochs": epochs, "verbose": 0, "shuffle": False}
    history = model.fit(x, Y, callbacks=[count, *callbacks], **options)
    of_all = hvd.allgather_object((len(batches), len(history.epoch)))
    assert len(set(of_all)) == 1, of_all
    return (model, *of_all[0])


class StopAt(keras.callbacks.Callback):
    """As a time limit or a signal would: on one rank, in the middle of an epoch."""

    def __init__(self, batch):
        super().__init__()
        self.left = batch

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if rank == size - 1 and self.left == 0:
            self.model.stop_training = True


def _stops():
    assert _fit([StopAt(13), C.AgreeOnStop(every=4)])[1:] == (16, 2)
    assert _fit([StopAt(19), C.AgreeOnStop(every=8)])[1:] == (20, 2)  # at the end of the epoch
    assert _fit([StopAt(3), C.AgreeOnStop()], steps_per_execution=2)[1:] == (3, 1)
    # One rank's data have a NaN in the third batch of the first epoch.
    bad = X.copy()
    if rank == 1:
        bad[9] = np.nan
    assert _fit([C.TerminateOnNaN()], x=bad)[1:] == (3, 1)
    assert _fit([C.TerminateOnNaN()])[1:] == (60, 6)


class Pretend(keras.callbacks.Callback):
    """The metric gets better on rank 0 only, by so much an epoch."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_epoch_end(self, epoch, logs=None):
        logs["val_loss"] = 1.0 - epoch * self.step * (rank == 0)


def _rate_of(model):
    return float(tf.convert_to_tensor(model.optimizer.learning_rate))


def _plateaus():
    """The rate goes down on all ranks alike, though the metric stands still on one rank only."""
    options = {"patience": 2, "min_delta": 0.5}
    for plateau in (
        [C.ReduceLROnPlateau("val_loss", factor=0.5, **options), C.MetricAverageCallback()],
        [
            C.MetricAverageCallback(),
            keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, **options),
        ],
    ):
        model = _fit([Pretend(0.1), *plateau], rate=0.25, epochs=4)[0]
        assert _rate_of(model) == 0.125 and len(set(hvd.allgather_object(_rate_of(model)))) == 1
    # In the wrong order it is an error on all ranks, not a rate that differs.
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", **options)
    with raises(RuntimeError, "must come after MetricAverageCallback"):
        _fit([Pretend(1.0), plateau, C.MetricAverageCallback()], rate=0.25)
    for make in (lambda: C.AgreeOnStop(every=0), lambda: C.TerminateOnNaN(every=-1)):
        with raises(ValueError, ">= 1"):
            make()


class Rates(keras.callbacks.Callback):
    """The rate after each execution."""

    def __init__(self):
        super().__init__()
        self.rates = []

    def on_train_batch_end(self, batch, logs=None):
        self.rates.append(_rate_of(self.model))


def _warm_up():
    """It reaches its rate whatever an execution is."""
    for steps in (1, 3, 4):
        note = Rates()
        warmup = C.LearningRateWarmupCallback(0.25, warmup_epochs=2, momentum_correction=False)
        _fit([warmup, note], epochs=3, steps_per_execution=steps)
        rates = note.rates
        assert rates == sorted(rates) and rates[-1] == 0.25, (steps, rates)
        a_epoch = len(rates) // 3
        assert rates[2 * a_epoch - 1] == 0.25 and rates[0] < 0.25, (steps, rates)


def stop_and_change_the_rate():
    _stops()
    _plateaus()
    _warm_up()
    report(done=True)


def _digest(values):
    return b"".join(np.ascontiguousarray(v).tobytes() for v in values)


def _same_everywhere(values):
    return len(set(hvd.allgather_object(_digest(values)))) == 1


def _own_data():
    rng = np.random.RandomState(rank)
    return rng.randn(24, 3).astype("float32") + rank, rng.randn(24, 1).astype("float32")


class Look(keras.callbacks.Callback):
    """The weights in each validation and at the end of each epoch."""

    def __init__(self):
        super().__init__()
        self.in_validation, self.in_checkpoint = [], []

    def on_test_begin(self, logs=None):
        self.in_validation.append(self.model.get_weights())

    def on_epoch_end(self, epoch, logs=None):
        self.in_checkpoint.append(self.model.get_weights())


def _normalized(average=True):
    """Whether the weights were equal in validation, in checkpoints and at the end."""
    x, y = _own_data()
    keras.utils.set_random_seed(rank)
    layers = [keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    look = Look()
    first = C.BroadcastGlobalVariablesCallback(0, average_batch_normalization=average)
    options = {"batch_size": 8, "epochs": 2, "verbose": 0, "validation_data": (x, y)}
    model.fit(x, y, callbacks=[first, look], **options)
    looks = (*look.in_validation, *look.in_checkpoint, model.get_weights())
    return [_same_everywhere(w) for w in looks]


def _moving_statistics():
    assert _normalized() == [True] * 5
    assert _normalized(average=False) == [False] * 5
    model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization()])
    model.layers[0].moving_mean.assign(tf.fill([3], rank + 1.0))
    assert hvd.average_batch_normalization(model) == 2
    assert np.allclose(model.layers[0].moving_mean, (size + 1) / 2)
    assert np.allclose(model.layers[0].moving_variance, 1)
    assert hvd.average_batch_normalization(keras.Sequential([keras.Input((3,))])) == 0


class Masks(keras.layers.Layer):
    """Dropout, whose results are kept."""

    def __init__(self):
        super().__init__()
        self.dropout = keras.layers.Dropout(0.5)
        self.last = []

    def call(self, inputs, training=None):
        out = self.dropout(inputs, training=training)
        if hasattr(out, "numpy"):
            self.last.append(out.numpy())
        return out


def _dropout():
    """README's broadcast, and fit() with the callback; masks differ, weights do not."""
    keras3 = hasattr(keras.random, "SeedGenerator") if hasattr(keras, "random") else False
    for way in ("broadcast_variables", "callback"):
        # Keras 3 keeps seeds as variables; elsewhere each rank sets a seed of its own.
        keras.utils.set_random_seed(7 if keras3 else 7 + rank)
        masks = Masks()
        model = keras.Sequential([keras.Input((50,)), masks, keras.layers.Dense(1)])
        if way == "broadcast_variables":
            hvd.broadcast_variables(model.variables, 0)
            masks(tf.ones([1, 50]), training=True)
        else:
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
            model.compile(optimizer, "mse", run_eagerly=True)
            broadcast = C.BroadcastGlobalVariablesCallback(0)
            model.fit(np.ones((2, 50)), np.ones((2, 1)), verbose=0, callbacks=[broadcast])
        assert _same_everywhere(model.get_weights()), way
        assert len(set(hvd.allgather_object(_digest(masks.last[-1:])))) == size, way
    generator = tf.random.Generator.from_seed(3)
    hvd.broadcast_variables([generator.state], 0)
    draws = hvd.allgather_object(_digest([generator.normal([4]).numpy()]))
    assert len(set(draws)) == size
    root = _digest([tf.random.Generator.from_seed(3).normal([4]).numpy()])
    assert draws[0] == root, "the root's"


def _two_jobs_in_one():
    """Callbacks for a process set."""
    x, y = _own_data()
    halves = [hvd.add_process_set([0]), hvd.add_process_set(list(range(1, size)))]
    mine = halves[min(rank, 1)]
    options = {"process_set": mine}
    keras.utils.set_random_seed(rank)
    normalization = hvd.SyncBatchNormalization(process_set=mine)
    model = keras.Sequential([keras.Input((3,)), normalization, keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), process_set=mine)
    model.compile(optimizer, "mse")
    written = []
    zero = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: written.append(epoch))
    callbacks = [
        C.BroadcastGlobalVariablesCallback(mine.ranks[0], **options),
        C.MetricAverageCallback(**options),
        C.EarlyStopping("val_loss", patience=9, **options),
        C.ReduceLROnPlateau("val_loss", **options),
        C.LearningRateWarmupCallback(0.01, warmup_epochs=1, **options),
        C.TerminateOnNaN(**options),
        C.Throughput(8, **options),
        C.RankZero(zero, **options),
    ]
    fit = {"batch_size": 8, "epochs": 2 + (rank == 0), "verbose": 0, "validation_data": (x, y)}
    model.fit(x, y, callbacks=callbacks, **fit)
    assert (rank in (0, 1)) == bool(written)
    digests = hvd.allgather_object(_digest(model.get_weights()))
    assert len(set(digests[1:])) == 1 and digests[0] != digests[1]
    for one in halves:
        hvd.remove_process_set(one)


def state_that_is_not_trained():
    _moving_statistics()
    _dropout()
    _two_jobs_in_one()
    report(done=True)


class Fail(keras.callbacks.Callback):
    """Interrupts epoch 2, if it is told to."""

    def __init__(self, fails):
        super().__init__()
        self.fails, self.epochs = fails, []

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs.append(epoch)
        if self.fails and epoch == 2:
            raise KeyboardInterrupt


def _train(fails, folder=None, order=1):
    """The weights, and the epochs that were begun."""
    x = np.random.RandomState(0).randn(12 * size, 3).astype("float32")
    x, y = x[rank::size], x[rank::size, :1] * 2
    keras.utils.set_random_seed(rank)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    model.compile(optimizer, "mse")
    callbacks = [C.BroadcastGlobalVariablesCallback(0)]
    if folder:
        callbacks.append(C.BackupAndRestore(folder))
    fail = Fail(fails)
    options = {"batch_size": 4, "epochs": 5, "verbose": 0, "shuffle": False}
    try:
        model.fit(x, y, callbacks=[*callbacks[::order], fail], **options)
    except KeyboardInterrupt:
        assert fails
    return model.get_weights(), fail.epochs


def backup_and_restore():
    folder = OUT / f"disk-{rank}" / "backup"  # each rank has a disk of its own
    for order in (1, -1):
        want, epochs = _train(False)
        assert epochs == [0, 1, 2, 3, 4]
        _, epochs = _train(True, folder)
        assert epochs == [0, 1, 2] and folder.exists() == (rank == 0)
        # Rubbish of another job on other ranks' disks does no harm.
        got, epochs = _train(False, folder, order)
        assert epochs == [2, 3, 4], epochs
        for a, b in zip(want, got, strict=True):
            assert (a == b).all(), (a, b)
        hvd.barrier()
        left = [files for _, _, files in os.walk(folder) if files]
        assert not left, left
    report(done=True)


class SlowDown(Fail):
    """Lowers the rate before it interrupts, as a plateau would."""

    def on_epoch_end(self, epoch, logs=None):
        if self.fails and epoch == 0:
            self.model.optimizer.learning_rate = 0.01


def _resumed(make, folder, fails):
    """The model, after a fit() that is interrupted, or goes on."""
    keras.utils.set_random_seed(rank)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(make()), "mse")
    callbacks = [C.BroadcastGlobalVariablesCallback(0), SlowDown(fails), C.BackupAndRestore(folder)]
    try:
        model.fit(X, Y, batch_size=4, epochs=4, verbose=0, callbacks=callbacks)
    except KeyboardInterrupt:
        assert fails
    return model


def _scaled(optimizer):
    """As compile() makes it under mixed_float16."""
    old = hasattr(keras.optimizers.Optimizer, "aggregate_gradients")
    kind = keras.mixed_precision.LossScaleOptimizer if old else keras.optimizers.LossScaleOptimizer
    return kind(optimizer)


def restored_optimizers():
    """What Keras 2's optimizers leave out of `variables` is restored on all ranks as well."""
    kinds = keras.optimizers
    makes = {
        "SGD": lambda: kinds.SGD(0.1, momentum=0.9),
        "Nadam": lambda: kinds.Nadam(0.1),
        "scaled": lambda: _scaled(kinds.Nadam(0.1)),
    }
    if hasattr(keras.optimizers.Optimizer, "aggregate_gradients"):
        makes["legacy"] = lambda: kinds.legacy.SGD(0.1)
        makes["scaled legacy"] = lambda: _scaled(kinds.legacy.Nadam(0.1))
    for name, make in makes.items():
        folder = OUT / f"{name}-{rank}"
        _resumed(make, folder, True)
        model = _resumed(make, folder, False)
        rates = hvd.allgather_object(_rate_of(model))
        assert rates == [np.float32(0.01)] * size, (name, rates)
        assert _same_everywhere(model.get_weights()), name
    report(done=True)


def one_rate():
    """BroadcastGlobalVariablesCallback gives all ranks the rate of rank 0."""
    kinds = [keras.optimizers.SGD]
    if hasattr(keras.optimizers.Optimizer, "aggregate_gradients"):
        kinds.append(keras.optimizers.legacy.SGD)
    for kind in kinds:
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(hvd.DistributedOptimizer(kind(0.1)), "mse")
        model.optimizer.learning_rate = 0.01 * (rank + 1)
        callbacks = [C.BroadcastGlobalVariablesCallback(0), C.CheckRanksEqual()]
        model.fit(X, Y, batch_size=4, verbose=0, callbacks=callbacks)
        assert _rate_of(model) == np.float32(0.01)
    report(done=True)
