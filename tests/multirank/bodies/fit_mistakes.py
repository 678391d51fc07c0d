"""What ranks do in test_fit_mistakes.py: each fit() has one of the commonest mistakes."""

import warnings

import numpy as np
import tensorflow as tf
from harness import OUT, rank, report, size

import smddp_tf.keras as hvd

keras = tf.keras
C = hvd.callbacks
K = keras.callbacks
_rng = np.random.RandomState(rank)
X = _rng.randn(24, 3).astype("float32")
Y = _rng.randn(24, 1).astype("float32")


def _model(layers=None):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), *(layers or [keras.layers.Dense(1)])])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    return model


def _told(callbacks, first=None, layers=None, **options):
    """The warnings of a fit() with these callbacks, after the broadcast."""
    options = {"batch_size": 8, "epochs": 1, "verbose": 0, **options}
    model = _model(layers)
    rows = options.pop("rows", len(X))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first = first or C.BroadcastGlobalVariablesCallback(0)
        model.fit(X[:rows], Y[:rows], callbacks=[first, *callbacks], **options)
    return [str(one.message) for one in caught if one.category is RuntimeWarning]


class StopsItself(K.Callback):
    """Would stop this rank alone: its own metrics say when."""

    def on_epoch_end(self, epoch, logs=None):
        if logs["loss"] < 0:
            self.model.stop_training = True


class Prints(K.Callback):
    """Changes nothing, so one rank may have it alone."""

    def on_epoch_end(self, epoch, logs=None):
        self.seen = (self.model.optimizer.learning_rate, logs)


def _is(told, *words):
    (text,) = told
    for word in words:
        assert word in text, (word, text)


def _callbacks_that_decide_alone():
    patient = {"monitor": "loss", "patience": 9}
    _is(_told([K.EarlyStopping(**patient)]), "EarlyStopping", "own 'loss'", "MetricAverageCallback")
    _is(_told([K.ReduceLROnPlateau(**patient), C.MetricAverageCallback()]), "ReduceLROnPlateau")
    _is(_told([C.MetricAverageCallback(), K.TerminateOnNaN()]), "callbacks.TerminateOnNaN")
    stopping = K.EarlyStopping(restore_best_weights=True, **patient)
    _is(_told([stopping, C.AgreeOnStop()]), "best weights")


class Averages(K.EarlyStopping):
    """A script's own."""

    def get_monitor_value(self, logs):
        return float(hvd.allreduce(tf.constant(logs["loss"])))


def _what_is_right():
    """No word where all ranks decide alike, or where one of them only writes."""
    patient = {"monitor": "loss", "patience": 9}
    keras_own = [K.EarlyStopping(**patient), K.ReduceLROnPlateau(**patient)]
    assert _told([C.MetricAverageCallback(), *keras_own]) == []
    assert _told([K.EarlyStopping(**patient), K.TerminateOnNaN(), C.AgreeOnStop()]) == []
    assert _told([K.EarlyStopping(**patient), C.EarlyStopping(**patient)]) == []
    hvds = [C.EarlyStopping(**patient), C.ReduceLROnPlateau(**patient), C.TerminateOnNaN()]
    assert _told([*hvds, StopsItself(), Averages(**patient)]) == []
    writes = [Prints(), K.CSVLogger(str(OUT / "log.csv"))] if rank == 0 else []
    saves = C.RankZero(K.ModelCheckpoint(str(OUT / "best.keras"), monitor="loss"))
    best = C.BestModelCheckpoint("loss", filepath=str(OUT / "best_too.keras"))
    assert _told([*writes, saves, best], verbose=2 * (rank == 0)) == []
    own_file = str(OUT / f"rank{rank}.keras")
    assert _told([K.ModelCheckpoint(own_file)], validation_data=(X, Y)) == []


def _what_differs():
    stops = [StopsItself()] if rank == 1 else []
    _is(_told(stops), "StopsItself] on rank 1", "give all ranks the same callbacks")
    rates = [K.LearningRateScheduler(lambda epoch, rate: rate)] if rank == 0 else []
    _is(_told([Prints(), *rates]), "LearningRateScheduler] on rank 0", "RankZero")
    validates = {"validation_data": (X, Y)} if rank == 0 else {}
    told = _told([], **validates)
    _is(told, "validation_data: given on rank 0; not given on rank", "hvd.evaluate")
    # Such ranks may validate alone who have said so.
    on_purpose = C.BroadcastGlobalVariablesCallback(0, average_batch_normalization=False)
    assert _told([C.EarlyStopping("val_loss", patience=9)], on_purpose, **validates) == []
    _is(_told([K.ModelCheckpoint(str(OUT / "all.keras"))]), "all.keras", "RankZero")


def _models_without_trainable_weights():
    """Nothing to reduce is no mistake."""
    assert _told([], layers=[keras.layers.Rescaling(0.5)]) == []
    frozen = keras.layers.Dense(1)
    frozen.trainable = False
    assert _told([], layers=[frozen]) == []


def _on_rank_zero_alone():
    """Told when it is made, as there may be no broadcast callback to look at the lists."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        C.RankZero(K.CSVLogger(str(OUT / "log.csv")))
        C.RankZero(Prints())
        assert not caught, [str(one.message) for one in caught]
        for callback in (K.EarlyStopping("loss"), C.ReduceLROnPlateau("loss"), StopsItself()):
            C.RankZero(callback)
            assert f"RankZero({type(callback).__name__})" in str(caught[-1].message)
    assert len(caught) == 3, [str(one.message) for one in caught]


def warnings_when_training_begins():
    _callbacks_that_decide_alone()
    _on_rank_zero_alone()
    _what_is_right()
    _what_differs()
    report(done=True)


def models_without_trainable_weights():
    _models_without_trainable_weights()
    report(done=True)


class OwnLoss(K.Callback):
    """The loss of the last rank stands still."""

    def on_epoch_end(self, epoch, logs=None):
        logs["loss"] = 1.0 if rank == size - 1 else 1.0 / (epoch + 1)


def _error_of(fit) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit()
    except tf.errors.OpError as error:
        return error.message
    return ""


def stops_alone():
    """The last rank leaves fit() after two epochs, and then the script."""
    callbacks = [C.BroadcastGlobalVariablesCallback(0), OwnLoss()]
    callbacks.append(K.EarlyStopping("loss", patience=1))
    options = {"epochs": 9, "callbacks": callbacks, "verbose": 0}
    report(error=_error_of(lambda: _model().fit(X, Y, **options)))


def stops_alone_without_broadcast():
    options = {"epochs": 9, "callbacks": [OwnLoss(), K.EarlyStopping("loss", patience=1)]}
    report(error=_error_of(lambda: _model().fit(X, Y, verbose=0, **options)))


def validates_alone():
    """What the ranks average after the epoch is not the same."""
    callbacks = [C.BroadcastGlobalVariablesCallback(0), C.MetricAverageCallback()]
    options = {"validation_data": (X, Y)} if rank == 0 else {}
    options |= {"callbacks": callbacks, "verbose": 0, "epochs": 2}
    report(error=_error_of(lambda: _model().fit(X, Y, **options)))


def fewer_batches():
    """The last rank has two batches in an epoch, the others three."""
    rows = 16 if rank == size - 1 else 24
    options = {"callbacks": [C.BroadcastGlobalVariablesCallback(0)], "verbose": 0}
    options |= {"batch_size": 8}
    report(error=_error_of(lambda: _model().fit(X[:rows], Y[:rows], **options)))
