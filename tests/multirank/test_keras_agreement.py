"""What ranks must decide, hold or restore alike in fit(), through mpirun."""

from conftest import KERASES, on_ranks

STOPS = """
import warnings
C = hvd.callbacks
rng = np.random.RandomState(rank)
x, y = rng.randn(40, 3).astype("float32"), rng.randn(40, 1).astype("float32")
def fit(callbacks, epochs=6, rate=0.0, x=x, **compiled):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(rate))
    model.compile(optimizer, "mse", **compiled)
    batches = []
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda b, logs: batches.append(b))
    history = model.fit(x, y, batch_size=4, epochs=epochs, verbose=0, shuffle=False,
                        callbacks=[count, *callbacks])
    of_all = hvd.allgather_object((len(batches), len(history.epoch)))
    assert len(set(of_all)) == 1, of_all
    return (model, *of_all[0])
class StopAt(keras.callbacks.Callback):
    "As a time limit or a signal would: on one rank, in the middle of an epoch."
    def __init__(self, batch):
        super().__init__()
        self.left = batch
    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if rank == size - 1 and self.left == 0:
            self.model.stop_training = True
assert fit([StopAt(13), C.AgreeOnStop(every=4)])[1:] == (16, 2)
assert fit([StopAt(19), C.AgreeOnStop(every=8)])[1:] == (20, 2)  # at the end of the epoch
assert fit([StopAt(3), C.AgreeOnStop()], steps_per_execution=2)[1:] == (3, 1)
# One rank's data have a NaN in the third batch of the first epoch.
bad = x.copy()
if rank == 1:
    bad[9] = np.nan
assert fit([C.TerminateOnNaN()], x=bad)[1:] == (3, 1)
assert fit([C.TerminateOnNaN()])[1:] == (60, 6)
# The rate goes down on all ranks alike, though the metric stands still on one rank only.
class Pretend(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        logs["val_loss"] = 1.0 - epoch * 0.1 * (rank == 0)
        if SPOIL:
            logs["val_loss"] = 1.0 - epoch * 1.0 * (rank == 0)
SPOIL = False
def rate_of(model):
    return float(tf.convert_to_tensor(model.optimizer.learning_rate))
for plateau in ([C.ReduceLROnPlateau("val_loss", factor=0.5, patience=2, min_delta=0.5),
                 C.MetricAverageCallback()],
                [C.MetricAverageCallback(),
                 keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=2,
                                                   min_delta=0.5)]):
    model = fit([Pretend(), *plateau], rate=0.25, epochs=4)[0]
    assert rate_of(model) == 0.125 and len(set(hvd.allgather_object(rate_of(model)))) == 1
# In the wrong order it is an error on all ranks, not a rate that differs.
SPOIL = True
try:
    fit([Pretend(), keras.callbacks.ReduceLROnPlateau("val_loss", patience=2, min_delta=0.5),
         C.MetricAverageCallback()], rate=0.25)
    raise SystemExit("rates that differ were accepted")
except RuntimeError as error:
    assert "must come after MetricAverageCallback" in str(error), error
for wrong in (lambda: C.AgreeOnStop(every=0), lambda: C.TerminateOnNaN(every=-1)):
    try:
        wrong()
        raise SystemExit("accepted")
    except ValueError as error:
        assert ">= 1" in str(error)
# Warm-up reaches its rate whatever an execution is.
for steps in (1, 3, 4):
    rates = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda b, logs: rates.append(rate_of(keep[0])))
    keep = []
    class Keep(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            keep.append(self.model)
    warmup = C.LearningRateWarmupCallback(0.25, warmup_epochs=2, momentum_correction=False)
    fit([Keep(), warmup, note], epochs=3, steps_per_execution=steps)
    assert rates == sorted(rates) and rates[-1] == 0.25, (steps, rates)
    a_epoch = len(rates) // 3
    assert rates[2 * a_epoch - 1] == 0.25 and rates[0] < 0.25, (steps, rates)
report(done=True)
"""


@on_ranks("keras_job", KERASES, 2, 3)
def test_ranks_stop_and_change_the_rate_together(keras_job, ranks):
    """User stops, NaN, plateaus, callbacks in the wrong order, warm-up with executions."""
    keras_job(STOPS, ranks).check(ranks)


STATE = """
C = hvd.callbacks
def digest(values):
    return b"".join(np.ascontiguousarray(v).tobytes() for v in values)
def same_everywhere(values):
    return len(set(hvd.allgather_object(digest(values)))) == 1
# Moving statistics: equal in validation, in checkpoints and at the end; on request, not.
rng = np.random.RandomState(rank)
x, y = rng.randn(24, 3).astype("float32") + rank, rng.randn(24, 1).astype("float32")
def normalized(average=True):
    keras.utils.set_random_seed(rank)
    model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(),
                              keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    class Look(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            in_validation.append(model.get_weights())
        def on_epoch_end(self, epoch, logs=None):
            in_checkpoint.append(model.get_weights())
    in_validation, in_checkpoint = [], []
    first = C.BroadcastGlobalVariablesCallback(0, average_batch_normalization=average)
    model.fit(x, y, batch_size=8, epochs=2, verbose=0, validation_data=(x, y),
              callbacks=[first, Look()])
    return [same_everywhere(w) for w in (*in_validation, *in_checkpoint, model.get_weights())]
assert normalized() == [True] * 5
assert normalized(average=False) == [False] * 5
model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization()])
model.layers[0].moving_mean.assign(tf.fill([3], rank + 1.0))
assert hvd.average_batch_normalization(model) == 2
assert np.allclose(model.layers[0].moving_mean, (size + 1) / 2)
assert np.allclose(model.layers[0].moving_variance, 1)
assert hvd.average_batch_normalization(keras.Sequential([keras.Input((3,))])) == 0
# Dropout: README's broadcast, and fit() with the callback; masks differ, weights do not.
class Masks(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.dropout = keras.layers.Dropout(0.5)
        self.last = []
    def call(self, inputs, training=None):
        out = self.dropout(inputs, training=training)
        if hasattr(out, "numpy"):
            self.last.append(out.numpy())
        return out
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
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse",
                      run_eagerly=True)
        model.fit(np.ones((2, 50)), np.ones((2, 1)), verbose=0,
                  callbacks=[C.BroadcastGlobalVariablesCallback(0)])
    assert same_everywhere(model.get_weights()), way
    assert len(set(hvd.allgather_object(digest(masks.last[-1:])))) == size, way
generator = tf.random.Generator.from_seed(3)
hvd.broadcast_variables([generator.state], 0)
draws = hvd.allgather_object(digest([generator.normal([4]).numpy()]))
assert len(set(draws)) == size
assert draws[0] == digest([tf.random.Generator.from_seed(3).normal([4]).numpy()]), "the root's"
# Callbacks for a process set: two jobs in one.
halves = [hvd.add_process_set([0]), hvd.add_process_set(list(range(1, size)))]
mine = halves[min(rank, 1)]
options = {"process_set": mine}
keras.utils.set_random_seed(rank)
model = keras.Sequential([keras.Input((3,)), hvd.SyncBatchNormalization(process_set=mine),
                          keras.layers.Dense(1)])
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), process_set=mine)
model.compile(optimizer, "mse")
written = []
zero = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: written.append(epoch))
model.fit(x, y, batch_size=8, epochs=2 + (rank == 0), verbose=0, validation_data=(x, y), callbacks=[
    C.BroadcastGlobalVariablesCallback(mine.ranks[0], **options),
    C.MetricAverageCallback(**options),
    C.EarlyStopping("val_loss", patience=9, **options), C.ReduceLROnPlateau("val_loss", **options),
    C.LearningRateWarmupCallback(0.01, warmup_epochs=1, **options), C.TerminateOnNaN(**options),
    C.Throughput(8, **options), C.RankZero(zero, **options)])
assert (rank in (0, 1)) == bool(written)
digests = hvd.allgather_object(digest(model.get_weights()))
assert len(set(digests[1:])) == 1 and digests[0] != digests[1]
for one in halves:
    hvd.remove_process_set(one)
report(done=True)
"""


@on_ranks("keras_job", KERASES, 2, 3)
def test_state_that_is_not_trained(keras_job, ranks):
    """Moving statistics are equal, dropout masks differ, and all of it within a process set."""
    keras_job(STATE, ranks).check(ranks)


UNBUILT = """
import keras_modes
C = hvd.callbacks
n = 6 * size
rng = np.random.RandomState(5)
series = rng.randn(n, 4, 3).astype("float32")
y = rng.randn(n, 1).astype("float32")
class Recurrent(keras.Model):
    "A state for each element of the batch, so only the batch's own size will do."
    def __init__(self):
        super().__init__()
        self.cell = keras.layers.LSTM(5, stateful=True)
        self.out = keras.layers.Dense(1)
    def call(self, inputs):
        return self.out(self.cell(inputs))
class Headed(keras.Model):
    "A head that only training calls."
    def __init__(self):
        super().__init__()
        self.body = keras.layers.Dense(4, activation="tanh")
        self.out, self.head = keras.layers.Dense(1), keras.layers.Dense(1)
    def call(self, inputs, training=False):
        hidden = self.body(inputs[:, 0])
        return self.out(hidden) + (self.head(hidden) if training else 0.0)
class OwnStep(Headed):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {"loss": loss}
class Ragged(keras.Model):
    def __init__(self):
        super().__init__()
        self.out = keras.layers.Dense(1)
    def call(self, inputs):
        return self.out(tf.reduce_sum(inputs, axis=1))
def train(kind, distributed, x, eager, batch):
    keras.utils.set_random_seed(3 + distributed * rank)
    model = kind()
    optimizer = keras.optimizers.Adam(0.01)
    callbacks = []
    if distributed:
        optimizer = hvd.DistributedOptimizer(optimizer)
        callbacks = [C.BroadcastGlobalVariablesCallback(0)]
    model.compile(optimizer, "mse", run_eagerly=eager)
    rows = np.arange(n).reshape(-1, batch)
    if distributed:
        rows = rows[:, rank * batch // size : (rank + 1) * batch // size]
    rows = rows.reshape(-1)
    data = tf.data.Dataset.from_tensor_slices((tf.gather(x, rows), y[rows]))
    data = data.batch(batch // size if distributed else batch, drop_remainder=True)
    model.fit(data, epochs=2, verbose=0, shuffle=False, callbacks=callbacks)
    return model
ragged = tf.RaggedTensor.from_row_lengths(
    tf.constant(rng.randn(n * 2, 3).astype("float32")), [1, 3] * (n // 2))
for kind, x in ((Recurrent, series), (Headed, series), (OwnStep, series), (Ragged, ragged)):
    if kind is Ragged and keras_modes.KERAS3:
        x = tf.constant(series)  # Keras 3 takes no ragged tensors in fit() of every version
        try:
            train(kind, False, ragged, False, 2 * size)
            x = ragged
        except Exception as error:
            print("plain Keras refuses ragged inputs:", error)
    alone = train(kind, False, x, False, 2 * size)
    for eager in (False, True)[: 1 + (kind is OwnStep)]:
        model = train(kind, True, x, eager, 2 * size)
        keras_modes.assert_equal_on_all_ranks(model, kind.__name__)
        got = {v.name if not keras_modes.KERAS3 else v.path: v for v in model.trainable_variables}
        assert len(got) == len(alone.trainable_variables) > 1
        for a, b in zip(alone.get_weights(), model.get_weights(), strict=True):
            # The states of the recurrent layer are those of each rank's own elements.
            if a.shape == b.shape and not a.shape == (2, 5):
                # Adam divides by the gradient's own size; 6 steps of 0.01
                assert np.abs(a - b).max() < 1e-4, (kind.__name__, eager, a, b)
        slots = hvd.allgather_object([np.asarray(tf.convert_to_tensor(v)).tobytes()
                                      for v in C._base.variables_of(model.optimizer)])
        assert all(one == slots[0] for one in slots), kind.__name__
# Variables that a built layer makes later are made equal, too; Keras 3 refuses them.
class Late(keras.layers.Layer):
    extra = None
    def call(self, inputs):
        return inputs
class AddsOne(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        layer = self.model.layers[0]
        if layer.extra is None:
            layer.extra = keras.layers.Dense(2)
            layer.extra.build((None, 2))
if not keras_modes.KERAS3:
    keras.utils.set_random_seed(rank)
    model = keras.Sequential([keras.Input((3,)), Late(), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", run_eagerly=True)
    model.fit(series[:4, 0], y[:4], verbose=0,
              callbacks=[C.BroadcastGlobalVariablesCallback(0), AddsOne()])
    keras_modes.assert_equal_on_all_ranks(model.layers[0], "late")
report(done=True)
"""


@on_ranks("keras_job", KERASES, 2, 3)
def test_models_that_the_first_batch_builds(keras_job, ranks):
    """Stateful RNNs, heads for training, own steps and ragged inputs equal one process."""
    keras_job(UNBUILT, ranks).check(ranks)


BACKUP = """
C = hvd.callbacks
import os
folder = OUT / ("disk-%d" % rank) / "backup"  # each rank has a disk of its own
x = np.random.RandomState(0).randn(12 * size, 3).astype("float32")
x, y = x[rank::size], x[rank::size, :1] * 2
class Fail(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        epochs.append(epoch)
        if self.model.fails and epoch == 2:
            raise KeyboardInterrupt
def train(fails, backup=True, order=1):
    keras.utils.set_random_seed(rank)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.fails = fails
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    model.compile(optimizer, "mse")
    callbacks = [C.BroadcastGlobalVariablesCallback(0)]
    if backup:
        callbacks.append(C.BackupAndRestore(folder))
    try:
        model.fit(x, y, batch_size=4, epochs=5, verbose=0, shuffle=False,
                  callbacks=callbacks[::order] + [Fail()])
    except KeyboardInterrupt:
        assert fails
    return model
for order in (1, -1):
    epochs = []
    want = train(False, backup=False).get_weights()
    assert epochs == [0, 1, 2, 3, 4]
    epochs = []
    train(True)
    assert epochs == [0, 1, 2] and folder.exists() == (rank == 0)
    # Rubbish of another job on other ranks' disks does no harm.
    epochs = []
    model = train(False, order=order)
    assert epochs == [2, 3, 4], epochs
    for a, b in zip(want, model.get_weights(), strict=True):
        assert (a == b).all(), (a, b)
    hvd.barrier()
    left = [files for _, _, files in os.walk(folder) if files]
    assert not left, left
report(done=True)
"""


def test_backup_and_restore(keras_job):
    """A run that was interrupted goes on in its epoch, on all ranks, from rank 0's disk."""
    keras_job(BACKUP, 2).check(2)
