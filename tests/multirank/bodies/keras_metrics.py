"""What ranks do in test_keras_metrics.py."""

import numpy as np
import tensorflow as tf
from checks import raises
from harness import rank, report, size

import smddp_tf.keras as hvd
from smddp_tf.keras import _metrics

keras = tf.keras
C = hvd.callbacks


class Hits(keras.metrics.Metric):
    """Keeps a largest value."""

    def __init__(self, name="hits", **options):
        super().__init__(name=name, **options)
        make = getattr(self, "add_variable", self.add_weight)
        self.most = make(shape=(), initializer="zeros", name="most")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.most.assign(tf.maximum(tf.convert_to_tensor(self.most), tf.reduce_max(y_pred)))

    def result(self):
        return tf.convert_to_tensor(self.most) * 1.0


class Largest(Hits):
    across_ranks = "max"


class Averaged(Hits):
    across_ranks = "average"


def _make(rate=0.0):
    """With this rate every weight stays as it is, so training's metrics are comparable, too."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, activation="sigmoid")])
    m = keras.metrics
    metrics = [
        m.AUC(name="auc"),
        m.Recall(name="recall"),
        m.Precision(name="precision"),
        "accuracy",
        m.MeanIoU(2, name="iou"),
        Largest("largest"),
        Averaged("averaged"),
    ]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(rate))
    model.compile(optimizer, "binary_crossentropy", metrics=metrics)
    return model


class Own(keras.Model):
    def train_step(self, data):
        return {**super().train_step(data), "loss": tf.constant(float(rank)), "mine": rank * 2.0}


class _Data:
    """All samples, this rank's, and what one process has on all of them."""

    def __init__(self):
        rng = np.random.RandomState(3)
        n = 240
        x = rng.randn(n, 6).astype("float32")
        y = (x[:, 0] + rng.randn(n) > 0.5).astype("float32")[:, None]
        order = np.argsort(x[:, 1])  # ranks' parts are of different kinds
        self.x, self.y = x[order], y[order]
        own = slice(rank * n // size, (rank + 1) * n // size)
        self.own = self.x[own], self.y[own]
        self.plain = _make()
        self.alone = self.evaluate(self.x, self.y)
        most = float(self.plain.predict(self.own[0], verbose=0).max())
        self.mean = {"averaged": np.mean(hvd.allgather_object(most))}

    def evaluate(self, x, y, return_dict=True):
        """In this process alone."""
        return self.plain.evaluate(x, y, batch_size=20, verbose=0, return_dict=return_dict)

    def check(self, got, prefix=""):
        """Metrics of all ranks."""
        for name, value in {**self.alone, **self.mean}.items():
            # float32 sums of 240 numbers, in another order
            assert abs(got[prefix + name] - value) < 2e-6, (prefix + name, got, self.alone)
        assert len(set(hvd.allgather_object(str(sorted(got.items()))))) == 1


def _in_fit(data):
    """Returns the trained model."""
    seen = []
    watch = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(dict(logs)))
    model = _make()
    callbacks = [C.BroadcastGlobalVariablesCallback(0), C.MetricAverageCallback(), watch]
    options = {"batch_size": 20, "epochs": 2, "verbose": 0, "callbacks": callbacks}
    history = model.fit(*data.own, validation_data=data.own, validation_freq=2, **options)
    for logs in seen:
        data.check(logs)
    data.check(seen[1], "val_")
    assert history.history["auc"] == [logs["auc"] for logs in seen]
    # The states are this rank's own again.
    auc = {m.name: m for m in _metrics._metrics_of(model)}["auc"]
    local = data.evaluate(*data.own)
    assert abs(float(auc.result()) - local["auc"]) < 1e-6
    aucs = hvd.allgather_object(local["auc"])
    assert any(abs(v - data.alone["auc"]) > 0.01 for v in aucs)
    return model


def _numbers_of_no_metric(data):
    """In the logs, or of a train_step that has its own: averaged."""
    inputs = keras.Input((6,))
    custom = Own(inputs, keras.layers.Dense(1)(inputs))
    custom.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
    logs = custom.fit(*data.own, verbose=0, callbacks=[C.MetricAverageCallback()]).history
    assert logs["mine"] == [size - 1.0] and abs(logs["loss"][0] - (size - 1) / 2) < 1e-6, logs


def _evaluate(data, model):
    """Arrays, datasets, with a number of elements that does not divide."""
    xs, ys = data.x[:-7], data.y[:-7]
    want = data.evaluate(xs, ys)
    pairs = tf.data.Dataset.from_tensor_slices((xs, ys)).batch(20)
    for got in (
        hvd.evaluate(model, xs, ys, batch_size=20, return_dict=True),
        hvd.evaluate(model, pairs, return_dict=True),
        hvd.evaluate(model, pairs.filter(lambda *_: True), return_dict=True),
    ):
        for name in set(want) - {"averaged"}:
            assert abs(got[name] - want[name]) < 2e-6, (name, got, want)
        assert len(set(hvd.allgather_object(str(sorted(got.items()))))) == 1
    listed = hvd.evaluate(model, data.x, data.y, batch_size=20)
    wanted = data.evaluate(data.x, data.y, return_dict=False)
    assert np.allclose(listed[:-1], wanted[:-1], atol=2e-6), (listed, wanted)
    part = hvd.shard((data.x, data.y))
    got = hvd.evaluate(model, *part, batch_size=20, sharded=True, return_dict=True)
    assert abs(got["auc"] - data.alone["auc"]) < 2e-6


def _evaluate_with_the_callback(data, model):
    """Callbacks see all ranks' metrics, and model.evaluate() returns them."""
    seen = []
    watch = keras.callbacks.LambdaCallback()
    watch.on_test_end = lambda logs: seen.append(dict(logs))
    average = C.MetricAverageCallback()
    options = {"batch_size": 20, "verbose": 0}
    for callbacks in ([average, watch], [watch, average]):
        got = model.evaluate(*data.own, return_dict=True, callbacks=callbacks, **options)
        data.check(got)
        assert got == seen.pop()
        listed = model.evaluate(*data.own, callbacks=callbacks, **options)
        assert sorted(listed) == sorted(got.values()), (listed, got)
    data.check(hvd.evaluate(model, data.x, data.y, return_dict=True, callbacks=[average]))
    one = hvd.evaluate(model, data.x[:1], data.y[:1], return_dict=True, callbacks=[average])
    assert one == hvd.evaluate(model, data.x[:1], data.y[:1], return_dict=True)
    _an_evaluation_that_fails(data, model, average)


def _an_evaluation_that_fails(data, model, average):
    """What comes after it, without the callback, is this rank's alone again."""
    with raises(Exception, "ncompatible"):
        model.evaluate(data.own[0][:, :2], data.own[1], verbose=0, callbacks=[average])
    if rank == 0:  # alone, so whatever is collective would hang
        own = data.evaluate(*data.own)
        assert model.evaluate(*data.own, batch_size=20, verbose=0, return_dict=True) == own
        assert "reset_metrics" not in vars(model)


def _one_element(data, model):
    """For several ranks."""
    x, y = data.x[:1], data.y[:1]
    one = hvd.evaluate(model, x, y, return_dict=True)
    want = data.plain.evaluate(x, y, verbose=0, return_dict=True)
    assert abs(one["loss"] - want["loss"]) < 1e-6, (one, want)
    assert one["accuracy"] == want["accuracy"], (one, want)


def _by_class():
    """F1Score's results are an array by default."""
    keras.utils.set_random_seed(1)
    n, classes = 60, 3
    x = np.random.RandomState(2).randn(n, 4).astype("float32")
    y = np.eye(classes, dtype="float32")[np.random.RandomState(3).randint(0, classes, n)]
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="softmax")])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.0))
    model.compile(optimizer, "mse", metrics=[keras.metrics.F1Score(name="f1")])
    options = {"batch_size": 5, "verbose": 0}
    want = model.evaluate(x, y, return_dict=True, **options)["f1"]
    assert np.shape(want) == (classes,)

    own = slice(rank * n // size, (rank + 1) * n // size)
    average = C.MetricAverageCallback()
    own_data = {"validation_data": (x[own], y[own]), "callbacks": [average]}
    history = model.fit(x[own], y[own], **own_data, **options).history
    evaluated = model.evaluate(x[own], y[own], return_dict=True, callbacks=[average], **options)
    for got in (
        hvd.evaluate(model, x, y, batch_size=5, return_dict=True)["f1"],
        hvd.evaluate(model, x, y, batch_size=5)[1],
        history["f1"][0],
        history["val_f1"][0],
        evaluated["f1"],
    ):
        assert np.allclose(got, want, atol=1e-6), (got, want)


def metrics_of_all_data():
    data = _Data()
    model = _in_fit(data)
    _numbers_of_no_metric(data)
    _evaluate(data, model)
    _evaluate_with_the_callback(data, model)
    _one_element(data, model)
    _by_class()
    report(done=True)


class Batches(getattr(keras.utils, "PyDataset", None) or keras.utils.Sequence):
    """Four batches of three elements."""

    def __init__(self, x):
        super().__init__()
        self.x = x

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return self.x[i * 3 : i * 3 + 3], self.x[i * 3 : i * 3 + 3]


def _predict(model, n):
    x = np.random.RandomState(n).randn(n, 2).astype("float32")
    want = model.predict(x, verbose=0)
    dataset = tf.data.Dataset.from_tensor_slices(x).batch(3)
    ways = [
        hvd.predict(model, x),
        hvd.predict(model, tf.constant(x), batch_size=2),
        hvd.predict(model, dataset),
        hvd.predict(model, dataset.filter(lambda e: True)),
    ]
    if n > 9:
        ways += [hvd.predict(model, Batches(x))]
        kept = n - n % size
        dropped = hvd.predict(model, hvd.shard(x), sharded=True)
        assert np.allclose(dropped[0], want[0][:kept], atol=1e-6)
        part = hvd.shard(tf.data.Dataset.from_tensor_slices(x), uneven="repeat").batch(2)
        repeated = hvd.predict(model, part, sharded=True)
        assert len(repeated[1]) % size == 0 and np.allclose(repeated[1][:n], want[1], atol=1e-6)
    for got in ways:
        for a, b in zip(got, want, strict=True):
            assert a.shape == b.shape and np.allclose(a, b, atol=1e-6), (n, a.shape, b.shape)


def predict():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((2,))
    model = keras.Model(inputs, [keras.layers.Dense(3)(inputs), keras.layers.Dense(1)(inputs)])
    hvd.broadcast_variables(model.variables, 0)
    for n in (1, 10, 12):
        _predict(model, n)
    x = np.zeros((12, 2), "float32")
    with raises(ValueError, "give steps="):
        hvd.predict(model, tf.data.Dataset.from_tensors(x).repeat())
    with raises(ValueError, "no data"):
        hvd.predict(model, x[:0])
    report(done=True)
