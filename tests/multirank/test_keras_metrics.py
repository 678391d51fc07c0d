"""Metrics, evaluate and predict over all ranks, through mpirun."""

from conftest import KERASES, on_ranks

METRICS = """
C = hvd.callbacks
rng = np.random.RandomState(3)
n = 240
x = rng.randn(n, 6).astype("float32")
y = (x[:, 0] + rng.randn(n) > 0.5).astype("float32")[:, None]
order = np.argsort(x[:, 1])  # ranks' parts are of different kinds
x, y = x[order], y[order]
own = slice(rank * n // size, (rank + 1) * n // size)
class Hits(keras.metrics.Metric):
    "Keeps a sum and a largest value."
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
def metrics():
    m = keras.metrics
    return [m.AUC(name="auc"), m.Recall(name="recall"), m.Precision(name="precision"), "accuracy",
            m.MeanIoU(2, name="iou"), Largest("largest"), Averaged("averaged")]
def make(rate=0.0):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, activation="sigmoid")])
    optimizer = keras.optimizers.SGD(rate)
    model.compile(hvd.DistributedOptimizer(optimizer), "binary_crossentropy", metrics=metrics())
    return model
# What one process has. Every weight stays as it is, so training's metrics are comparable, too.
plain = make()
alone = plain.evaluate(x, y, batch_size=20, verbose=0, return_dict=True)
mean = {"averaged": np.mean(hvd.allgather_object(
    float(plain.predict(x[own], verbose=0).max())))}
def same(got, prefix=""):
    for name, value in {**alone, **mean}.items():
        # float32 sums of 240 numbers, in another order
        assert abs(got[prefix + name] - value) < 2e-6, (prefix + name, got, alone)
    assert len(set(hvd.allgather_object(str(sorted(got.items()))))) == 1
seen = []
watch = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(dict(logs)))
model = make()
history = model.fit(
    x[own], y[own], batch_size=20, epochs=2, verbose=0, validation_data=(x[own], y[own]),
    validation_freq=2,
    callbacks=[C.BroadcastGlobalVariablesCallback(0), C.MetricAverageCallback(), watch])
for logs in seen:
    same(logs)
same(seen[1], "val_")
assert history.history["auc"] == [logs["auc"] for logs in seen]
# The states are this rank's own again.
auc = {m.name: m for m in __import__("smddp_tf").keras._metrics._metrics_of(model)}["auc"]
local = plain.evaluate(x[own], y[own], batch_size=20, verbose=0, return_dict=True)
assert abs(float(auc.result()) - local["auc"]) < 1e-6
assert any(abs(v - alone["auc"]) > 0.01 for v in hvd.allgather_object(local["auc"]))
# Numbers in the logs that are no metric's, or of a train_step that has its own, are averaged.
class Own(keras.Model):
    def train_step(self, data):
        return {**super().train_step(data), "loss": tf.constant(float(rank)), "mine": rank * 2.0}
inputs = keras.Input((6,))
custom = Own(inputs, keras.layers.Dense(1)(inputs))
custom.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
logs = custom.fit(x[own], y[own], verbose=0, callbacks=[C.MetricAverageCallback()]).history
assert logs["mine"] == [size - 1.0] and abs(logs["loss"][0] - (size - 1) / 2) < 1e-6, logs
# evaluate() over all: arrays, datasets, with a number of elements that does not divide.
xs, ys = x[:-7], y[:-7]
want = plain.evaluate(xs, ys, batch_size=20, verbose=0, return_dict=True)
pairs = tf.data.Dataset.from_tensor_slices((xs, ys)).batch(20)
for got in (hvd.evaluate(model, xs, ys, batch_size=20, return_dict=True),
            hvd.evaluate(model, pairs, return_dict=True),
            hvd.evaluate(model, pairs.filter(lambda *_: True), return_dict=True)):
    for name in set(want) - {"averaged"}:
        assert abs(got[name] - want[name]) < 2e-6, (name, got, want)
    assert len(set(hvd.allgather_object(str(sorted(got.items()))))) == 1
listed = hvd.evaluate(model, x, y, batch_size=20)
wanted = plain.evaluate(x, y, batch_size=20, verbose=0)
assert np.allclose(listed[:-1], wanted[:-1], atol=2e-6), (listed, wanted)
got = hvd.evaluate(model, *hvd.shard((x, y)), batch_size=20, sharded=True, return_dict=True)
assert abs(got["auc"] - alone["auc"]) < 2e-6
seen.clear()
watch = keras.callbacks.LambdaCallback()
watch.on_test_end = lambda logs: seen.append(dict(logs))
model.evaluate(x[own], y[own], batch_size=20, verbose=0,
               callbacks=[C.MetricAverageCallback(), watch])
same(seen[0])
# One element for several ranks.
one = hvd.evaluate(model, x[:1], y[:1], return_dict=True)
want = plain.evaluate(x[:1], y[:1], verbose=0, return_dict=True)
assert abs(one["loss"] - want["loss"]) < 1e-6 and one["accuracy"] == want["accuracy"], (one, want)
report(done=True)
"""


@on_ranks("keras_job", KERASES, 2, 3)
def test_metrics_are_those_of_all_data(keras_job, ranks):
    """AUC, Recall and others in fit() and evaluate() equal one process's; states stay local."""
    keras_job(METRICS, ranks).check(ranks)


PREDICT = """
keras.utils.set_random_seed(1)
inputs = keras.Input((2,))
model = keras.Model(inputs, [keras.layers.Dense(3)(inputs), keras.layers.Dense(1)(inputs)])
hvd.broadcast_variables(model.variables, 0)
class Batches(getattr(keras.utils, "PyDataset", None) or keras.utils.Sequence):
    def __len__(self):
        return 4
    def __getitem__(self, i):
        return x[i * 3 : i * 3 + 3], x[i * 3 : i * 3 + 3]
for n in (1, 10, 12):
    x = np.random.RandomState(n).randn(n, 2).astype("float32")
    want = model.predict(x, verbose=0)
    dataset = tf.data.Dataset.from_tensor_slices(x).batch(3)
    ways = [hvd.predict(model, x), hvd.predict(model, tf.constant(x), batch_size=2),
            hvd.predict(model, dataset), hvd.predict(model, dataset.filter(lambda e: True))]
    if n > 9:
        ways += [hvd.predict(model, Batches())]
        kept = n - n % size
        dropped = hvd.predict(model, hvd.shard(x), sharded=True)
        assert np.allclose(dropped[0], want[0][:kept], atol=1e-6)
        part = hvd.shard(tf.data.Dataset.from_tensor_slices(x), uneven="repeat").batch(2)
        repeated = hvd.predict(model, part, sharded=True)
        assert len(repeated[1]) % size == 0 and np.allclose(repeated[1][:n], want[1], atol=1e-6)
    for got in ways:
        for a, b in zip(got, want, strict=True):
            assert a.shape == b.shape and np.allclose(a, b, atol=1e-6), (n, a.shape, b.shape)
for bad in (lambda: hvd.predict(model, tf.data.Dataset.from_tensors(x).repeat()),
            lambda: hvd.predict(model, x[:0])):
    try:
        bad()
        raise SystemExit("accepted")
    except ValueError as error:
        assert "take(steps)" in str(error) or "no data" in str(error), error
report(done=True)
"""


@on_ranks("keras_job", KERASES, 2, 3)
def test_predict_in_the_order_of_the_data(keras_job, ranks):
    """All ranks get all predictions, of arrays, datasets and sequences, however many there are."""
    keras_job(PREDICT, ranks).check(ranks)
