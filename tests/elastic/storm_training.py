"""An elastic training in a storm of faults (storm.py), which it reports to, step by step.

    smddprun -np 3 --min-np 1 python tests/elastic/storm_training.py FOLDER loop

`loop` is a loop with DistributedGradientTape, `fit` is Keras' fit(). Each process appends to a file
of FOLDER what it does. An order in FOLDER/order makes it die or raise at one of its points. When
FOLDER/enough is there, training ends with the epoch.
"""

import contextlib
import faulthandler
import json
import os
import pathlib
import random
import signal
import socket
import sys
import threading
import time

import numpy as np
import storm_numbers
import tensorflow as tf

import smddp_tf.keras as hvd
from smddp_tf.errors import HostsUpdatedInterrupt

BATCHES_PER_COMMIT = 3
SILENT_SECONDS = 3  # after so long without a report a rank writes what it does
SLOWEST_SECONDS = 0.02  # of a step, so that faults meet ranks at many points
folder, how = pathlib.Path(sys.argv[1]), sys.argv[2]
slot = int(os.environ["SMDDP_RENDEZVOUS_SLOT"])
stacks = open(folder / f"stacks{slot}", "w")  # noqa: SIM115
log = os.open(folder / f"log{slot}", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
traces, counted = [], []  # at each trace; how many traces there were after each step
call = 0


def note(event, **what):
    """Tells the storm what this process does."""
    times = {"at": time.monotonic(), "processor": time.process_time()}
    line = {"event": event, **times, "pid": os.getpid(), "call": call, **what}
    os.write(log, json.dumps(line).encode() + b"\n")
    faulthandler.dump_traceback_later(SILENT_SECONDS, repeat=True, file=stacks)


def die():
    note("dies")
    os.kill(os.getpid(), signal.SIGKILL)


def at(point):
    """Does what an order says for this point, once."""
    try:
        order = json.loads((folder / "order").read_text())
        if order["point"] != point or not order["least"] <= slot <= order["most"]:
            return
        os.rename(folder / "order", folder / f"taken{order['number']}")
    except FileNotFoundError:
        return  # there is none, or another process was first
    note("ordered", point=point)
    if order["does"] == "kill newcomers":
        kill_newcomers()
        return
    if order["does"] == "raise":
        note("dies")
        raise RuntimeError(f"a fault of the script at {point}")
    if order["after"] == 0:
        die()
    threading.Timer(order["after"], die).start()


def kill_newcomers():
    """Ends those that wait to be let in; smddprun hears of it before this rank asks for them."""
    killed = []
    for path in folder.glob("log*"):
        last = json.loads(path.read_text().splitlines()[-1])
        if last["event"] == "waits":
            with contextlib.suppress(ProcessLookupError):  # a fault before has ended it
                os.kill(last["pid"], signal.SIGKILL)
                killed.append(int(path.name[3:]))
    note("kills", slots=killed)
    time.sleep(0.3)


class Watched(hvd.elastic.KerasState):
    """A state with points in what it does."""

    def sync(self):
        at("sync")
        super().sync()
        at("synced")

    def commit(self):
        at("commit")
        super().commit()

    def restore(self):
        at("restore")
        super().restore()

    def check_host_updates(self):
        try:
            super().check_host_updates()
        except HostsUpdatedInterrupt:
            at("update")
            raise


def begins():
    """At each call of the training function: who trains."""
    global call
    call += 1
    note("call", members=hvd.allgather_object(slot), rank=hvd.rank())


def is_enough():
    """Whether the storm is over; all ranks agree."""
    own = tf.constant(int((folder / "enough").exists()))
    return int(hvd.allreduce(own, op=hvd.Max, name="enough")) > 0


def before_step():
    at("step")
    time.sleep(random.uniform(0, SLOWEST_SECONDS))


def after_step(state, mine):
    """Counts the samples of a step that is done."""
    own = np.array([len(mine), mine.sum(), (mine**2).sum()], np.int64)
    state.sums = state.sums + hvd.allreduce(own, op=hvd.Sum, name="sums").numpy()
    counted.append(len(traces))
    note("step")


def loop_of(model):
    """What trains to the storm's end, in a loop; the step is traced once, so it is made once."""
    x, y = map(tf.constant, storm_numbers.data())

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def step(mine):
        traces.append(1)
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            error = model(tf.gather(x, mine), training=True) - tf.gather(y, mine)
            loss = tf.reduce_mean(error**2)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    def loop(state):
        while not is_enough():
            for mine in state.samples.batches():
                before_step()
                step(mine)
                after_step(state, mine)
                if state.samples.position // storm_numbers.BATCH % BATCHES_PER_COMMIT == 0:
                    state.commit()

    return loop


class Steps(tf.keras.callbacks.Callback):
    """What is done around each step of fit()."""

    def __init__(self, state):
        super().__init__()
        self.state, self.parts = state, []

    def on_train_batch_begin(self, batch, logs=None):
        before_step()

    def on_train_batch_end(self, batch, logs=None):
        after_step(self.state, self.parts[batch])


def fit_of(model):
    """The same by fit()."""
    x, y = storm_numbers.data()

    def fit(state):
        steps = Steps(state)
        callbacks = [  # made anew each time, as scripts do
            steps,
            hvd.elastic.CommitStateCallback(state, batches_per_commit=BATCHES_PER_COMMIT),
            hvd.elastic.UpdateSamplesStateCallback(state),
        ]
        while not is_enough():
            steps.parts = state.samples.parts()
            batches = ((x[part], y[part]) for part in steps.parts)
            model.fit(batches, steps_per_epoch=len(steps.parts), callbacks=callbacks, verbose=0)

    return fit


def make_model():
    def loss(wanted, found):
        if how == "fit":
            traces.append(1)
        return tf.reduce_mean((found - wanted) ** 2, axis=-1)

    layers = [tf.keras.layers.Dense(3, "tanh"), tf.keras.layers.Dense(1)]
    model = tf.keras.Sequential(layers)
    model.build([None, 5])
    # Only those of slot 0, which is rank 0 at first, are right: sync() has to replace the others.
    model.set_weights([weight + slot for weight in storm_numbers.initial()])
    plain = tf.keras.optimizers.SGD(storm_numbers.RATE, momentum=storm_numbers.MOMENTUM)
    model.compile(hvd.DistributedOptimizer(plain) if how == "fit" else plain, loss)
    model.optimizer.build(model.trainable_variables)
    return model


def main():
    faulthandler.register(signal.SIGRTMIN + 5, stacks)  # hung.WRITE_STACKS
    note("starts", host=socket.gethostname())
    at("start")
    hvd.init()
    model = make_model()
    train_to_the_end = {"loop": loop_of, "fit": fit_of}[how](model)
    samples = hvd.elastic.Samples(storm_numbers.COUNT, storm_numbers.BATCH)
    state = Watched(model, samples=samples, sums=np.zeros(3, np.int64))
    state.register_reset_callbacks([lambda: at("reset")])

    @hvd.elastic.run
    def train(state):
        try:
            begins()
            train_to_the_end(state)
            at("end")
        except tf.errors.OpError:
            note("lost")
            at("lost")
            raise

    note("waits")
    at("waiting")
    train(state)
    # Keras traces anew when an optimizer's variables appear, so the second step counts.
    result = {
        "slot": slot,
        "rank": hvd.rank(),
        "size": hvd.size(),
        "epochs": state.samples.epoch,
        "sums": state.sums.tolist(),
        "traces": counted[1:2] + counted[-1:],
        "weights": [weight.tolist() for weight in model.get_weights()],
    }
    (folder / f"result{slot}").write_text(json.dumps(result))
    note("ends")


main()
