"""The callbacks of smddp_tf.keras, through mpirun."""

import re

from conftest import KERASES, on_ranks

CALLBACKS = """
import keras_modes
C = hvd.callbacks
class Record(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.rates, self.logs, self.velocities = [], [], []
    def on_train_batch_end(self, batch, logs=None):
        self.rates.append(float(tf.convert_to_tensor(self.model.optimizer.learning_rate)))
    def on_epoch_end(self, epoch, logs=None):
        self.logs.append({k: float(v) for k, v in logs.items()})
mode = keras_modes.Mode()
def fit(callbacks, epochs=4, optimizer=None, validate=False, **compiled):
    optimizer = optimizer or hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * size))
    keras.utils.set_random_seed(rank)
    model = mode.model()
    model.compile(optimizer, mode_loss, metrics=["accuracy"], **compiled)
    rows = keras_modes.own_part()
    x, y = keras_modes.X[rows], keras_modes.Y[rows]
    validation = (x[:10], y[:10]) if validate else None
    return model, model.fit(x, y, batch_size=24 // size, epochs=epochs, verbose=0, shuffle=False,
                            validation_data=validation, callbacks=callbacks)
mode_loss = keras_modes.loss_object()
# Metrics are the same everywhere, and the checkpoint sees them.
record = Record()
best = str(OUT / "best.keras")
seen = []
only_zero = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(epoch))
model, history = fit([
    C.BroadcastGlobalVariablesCallback(0), C.MetricAverageCallback(),
    C.LearningRateWarmupCallback(0.1 * size, warmup_epochs=2, verbose=1), record,
    C.BestModelCheckpoint(monitor="val_loss", filepath=best), C.RankZero(only_zero),
], validate=True)
assert len(hvd.allgather_object(str(record.logs))) == size
assert len(set(hvd.allgather_object(str(record.logs)))) == 1
assert {"loss", "accuracy", "val_loss", "val_accuracy", "lr"} <= set(record.logs[0])
assert [h for h in history.history["loss"]] == [l["loss"] for l in record.logs]
assert len(seen) == (4 if rank == 0 else 0)
hvd.barrier()
import os
assert os.path.exists(best)
# The ramp: from 0.1 to 0.1 * size over 12 batches, then flat.
steps = 6 * 2
want = [0.1 * (1 + (i + 1) / steps * (size - 1) * 1.0) for i in range(steps)]
assert np.allclose(record.rates[:steps], want, rtol=1e-5), (record.rates[:steps], want)
assert np.allclose(record.rates[steps:], 0.1 * size)
# A staircase, and momentum that goes with it: one batch of zero gradient moves by m * ratio * v.
record = Record()
model, _ = fit([C.BroadcastGlobalVariablesCallback(0),
                C.LearningRateScheduleCallback(0.2, lambda epoch: 0.5 ** epoch), record])
assert np.allclose(record.rates, np.repeat([0.2, 0.1, 0.05, 0.025], 6), rtol=1e-5), record.rates
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.2, momentum=0.9))
model, _ = fit([C.BroadcastGlobalVariablesCallback(0)], optimizer=optimizer, epochs=1)
callback = C.LearningRateScheduleCallback(0.2, 0.5)
callback.set_model(model), callback.on_epoch_begin(0)
velocity = optimizer.momentums[0]
before = velocity.numpy().copy()
callback.on_train_batch_begin(0)
assert np.allclose(velocity.numpy(), before * 0.5) and np.abs(before).max() > 0
# All ranks stop together, on the average.
class Pretend(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        # Rank 0 improves for ever; on the average it gets worse from epoch 2 on.
        logs["val_loss"] = -epoch * 1.0 if rank == 0 else (0.0 if epoch < 2 else 5.0 * epoch)
model, history = fit([C.BroadcastGlobalVariablesCallback(0), Pretend(),
                      C.EarlyStopping("val_loss", patience=1, mode="min")], epochs=9)
assert len(history.epoch) == 3, history.epoch
class StopOne(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = rank == size - 1 and epoch == 1
model, history = fit([StopOne(), C.EarlyStopping("loss", patience=50)], epochs=9)
assert len(history.epoch) == 2, history.epoch
# Throughput: every rank has the same numbers, and TensorBoard has them.
folder = str(OUT / "board")
throughput = C.Throughput(24 // size, log_dir=folder, every=2)
model, history = fit([throughput], epochs=2, steps_per_execution=2)
rates = history.history["samples_per_second"]
assert len(set(hvd.allgather_object(str(rates)))) == 1 and min(rates) > 10, rates
assert all(0 < share < 1 for share in history.history["wait_share"])
assert throughput._all_batches == 12
hvd.barrier()
if rank == 0:
    import glob
    from tensorflow.python.summary.summary_iterator import summary_iterator
    tags = [v.tag for f in glob.glob(folder + "/*") for e in summary_iterator(f)
            for v in e.summary.value]
    assert {"samples_per_second", "step_ms", "wait_share"} <= set(tags), tags
# A schedule in the optimizer cannot be overruled.
try:
    schedule = keras_modes.schedule()
    fit([C.LearningRateWarmupCallback(0.1)],
        optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(schedule)))
    raise SystemExit("a schedule was overruled")
except ValueError as error:
    assert "schedule" in str(error)
report(done=True)
"""


@on_ranks("keras_job", KERASES, 2, 3)
def test_callbacks(keras_job, ranks):
    """Equal metrics, warm-up, schedules, momentum, checkpoints and stopping together."""
    job = keras_job(CALLBACKS, ranks)
    job.check(ranks)
    line = r"epoch=2; ranks=\d; samples_per_second=[\d.e+]+; step_ms=[\d.e+]+; wait_share=[\d.e-]+;"
    assert re.search(line, job.output), job.output[-3000:]
