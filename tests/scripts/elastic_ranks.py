"""An elastic training whose ranks are killed while it runs.

    smddprun -np 3 --min-np 2 python tests/scripts/elastic_ranks.py FOLDER loop 1@7 3+9

In slot 1 the process ends itself with SIGKILL before step 7 (-1: before the training), and the
ranks wait before step 9 until there are three of them. With 3<2 the process in slot 3 comes when
ranks have gone on as two: else a lost rank may be replaced before it is missed. With 1=7 that
process stops; with 1!7 it raises an exception, with all!7 every one does. With 1-7 it gets SIGTERM,
and the ranks wait until it has left. With 1~7 it is late for step 7 by more than
SMDDP_TIMEOUT_SECONDS, with 1~~7 each time that this step comes. 1#7 leaves a file of that name in
FOLDER before the ranks wait. Each rank that ends well leaves a line of JSON there.

`loop` sums numbers that tell whether each sample was used once. `fit` trains a Keras model by fit()
and Horovod's callbacks, `samples` by fit() and Samples; both compare it with a training in one
process. `first` is as Horovod's example for Keras.
"""

import json
import os
import pathlib
import signal
import sys
import time

import newcomers
import numpy as np
import tensorflow as tf

import smddp_tf.keras as hvd

EPOCHS, BATCHES, BATCH = 4, 5, 12
STEPS = EPOCHS * BATCHES
folder, how, plan = pathlib.Path(sys.argv[1]), sys.argv[2], set(sys.argv[3:])
slot = int(os.environ["SMDDP_RENDEZVOUS_SLOT"])
sizes, resets, members = [], [], []


def before_step(step):
    if f"{slot}@{step}" in plan:
        os.kill(os.getpid(), signal.SIGKILL)
    if f"{slot}={step}" in plan:
        os.kill(os.getpid(), signal.SIGSTOP)
    if {f"{slot}!{step}", f"all!{step}"} & plan:
        raise RuntimeError(f"a fault of the script in step {step}")
    if {f"{slot}~{step}", f"{slot}~~{step}"} & plan:
        plan.discard(f"{slot}~{step}")
        time.sleep(2 * float(os.environ["SMDDP_TIMEOUT_SECONDS"]))


def await_others(state, step):
    """Before a step whose samples Samples.batches() has not handed out yet."""
    if f"{slot}#{step}" in plan:
        (folder / f"{slot}#{step}").touch()
    end = time.monotonic() + 100
    if f"{slot}-{step}" in plan:
        os.kill(os.getpid(), signal.SIGTERM)
    while is_awaited(step) and time.monotonic() < end:
        state.check_host_updates()
        time.sleep(0.05)


def is_awaited(step):
    """Whether a rank is to come or to leave before this step."""
    leave = any(f"{member}-{step}" in plan for member in members)
    return leave or f"{hvd.size() + 1}+{step}" in plan


def begins():
    """At each call of the training function."""
    sizes.append(hvd.size())
    newcomers.note_size(folder, hvd.size())
    members[:] = hvd.allgather_object(slot)


def before_training():
    """Once all have come so far, so that nobody is in a collective."""
    (folder / f"ready{slot}").touch()
    end = time.monotonic() + 100
    while f"{slot}@-1" in plan and time.monotonic() < end:
        if len(list(folder.glob("ready*"))) == hvd.size():
            before_step(-1)
        time.sleep(0.05)


def part(values):
    """This rank's part of a global batch."""
    each = len(values) // hvd.size()
    return values[hvd.rank() * each : (hvd.rank() + 1) * each]


def sum_numbers():
    total = tf.Variable(tf.zeros([3], tf.int64))
    traces = []

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def add(samples):
        traces.append(1)
        ones = tf.ones_like(samples)
        sums = tf.stack([tf.reduce_sum(s) for s in (ones, samples, samples**2)])
        total.assign_add(hvd.allreduce(sums, op=hvd.Sum))

    @hvd.elastic.run
    def train(state):
        begins()
        while state.samples.epoch < EPOCHS:
            for mine in state.samples.batches():
                before_step(state.step)
                add(mine)
                state.step += 1
                await_others(state, state.step)
                if state.step % 3 == 0:
                    state.commit()

    samples = hvd.elastic.Samples(BATCHES * BATCH - 5, BATCH)
    train(hvd.elastic.TensorFlowState([total], step=0, samples=samples))
    every = np.arange(samples.count)
    sums = EPOCHS * np.array([len(every), every.sum(), (every**2).sum()])
    once = total.numpy().tolist() == sums.tolist()
    return {"once": once, "traces": len(traces)}


def make_model():
    tf.keras.utils.set_random_seed(3)
    model = tf.keras.Sequential([tf.keras.layers.Dense(3, "tanh"), tf.keras.layers.Dense(1)])
    model.build([None, 5])
    return model


def data():
    x = np.random.default_rng(5).normal(size=[BATCHES * BATCH, 5]).astype("float32")
    return x, x.sum(1, keepdims=True)


class Watch(tf.keras.callbacks.Callback):
    """Kills or waits before a batch."""

    def __init__(self, state, step):
        super().__init__()
        self.state, self.step = state, step

    def on_train_batch_begin(self, batch, logs=None):
        before_step(self.step())
        await_others(self.state, self.step())


def compiled(**objects):
    model = make_model()
    model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.01)), "mse")
    state = hvd.elastic.KerasState(model, **objects)
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])
    return model, state


def fit_first():
    """Like Horovod's example: fit() makes the optimizer's variables before run() and in resets."""
    model = make_model()
    model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.01)), "mse")
    x, y = data()
    mine = tf.data.Dataset.from_tensor_slices((x, y)).repeat().shuffle(99).batch(BATCH)
    model.fit(mine, steps_per_epoch=1, verbose=0)
    state = hvd.elastic.KerasState(model, epoch=0, batch=0)

    def again():
        hvd.init()  # as scripts do to be sure
        resets.append(hvd.size())
        model.fit(mine, steps_per_epoch=1, verbose=0)

    state.register_reset_callbacks([again])
    callbacks = [
        Watch(state, lambda: state.epoch * BATCHES + state.batch),
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.CommitStateCallback(state),
    ]

    @hvd.elastic.run
    def train(state):
        begins()
        left = EPOCHS - state.epoch
        model.fit(mine, steps_per_epoch=BATCHES, epochs=left, callbacks=callbacks, verbose=0)

    train(state)
    hvd.check_ranks_equal(model.variables)
    return {"epoch": state.epoch}


def fit():
    model, state = compiled(epoch=0, batch=0)
    positions = {"reset": [], "call": []}

    def note(event):
        positions[event].append([state.epoch, state.batch])

    state.register_reset_callbacks([lambda: note("reset")])

    @hvd.elastic.run
    def train(state):
        begins()
        note("call")
        callbacks = [  # made anew each time, as scripts do
            Watch(state, lambda: state.epoch * BATCHES + state.batch),
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
        ]
        while state.epoch < EPOCHS:
            batches = [part(array.reshape(BATCHES, BATCH, -1).swapaxes(0, 1)) for array in data()]
            x, y = (np.concatenate(part.swapaxes(0, 1)) for part in batches)
            mine = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH // hvd.size())
            model.fit(mine.skip(state.batch), epochs=1, callbacks=callbacks, verbose=0)

    train(state)
    return {"positions": positions, **compared(model)}


def fit_samples():
    model, state = compiled(samples=hvd.elastic.Samples(BATCHES * BATCH, BATCH, shuffle=False))
    x, y = data()

    @hvd.elastic.run
    def train(state):
        begins()
        callbacks = [
            Watch(state, lambda: state.samples.epoch * BATCHES + state.samples.position // BATCH),
            hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
            hvd.elastic.UpdateSamplesStateCallback(state),
        ]
        while state.samples.epoch < EPOCHS:
            parts = state.samples.parts()
            mine = ((x[part], y[part]) for part in parts)
            model.fit(mine, steps_per_epoch=len(parts), callbacks=callbacks, verbose=0)

    train(state)
    return compared(model)


def compared(model):
    alone = make_model()
    alone.compile(tf.keras.optimizers.Adam(0.01), "mse")
    alone.fit(*data(), batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0)
    both = zip(model.weights, alone.weights, strict=True)
    return {"error": max(float(np.abs(one.numpy() - other.numpy()).max()) for one, other in both)}


newcomers.await_turn(folder, plan, slot)
hvd.init()
first = [hvd.rank(), hvd.size()]
assert hvd.broadcast_object(slot, 0) is not None  # a newcomer is not let in yet, and alone
before_training()
result = {"loop": sum_numbers, "fit": fit, "samples": fit_samples, "first": fit_first}[how]()
place = {"slot": slot, "first": first, "rank": hvd.rank(), "sizes": sizes, "resets": resets}
with open(folder / "results", "a") as results:
    results.write(json.dumps({**place, **result}) + "\n")
