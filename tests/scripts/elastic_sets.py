"""An elastic training with process sets and a learning rate that depends on the number of ranks.

    smddprun -np 3 --min-np 1 --host-discovery-script H python elastic_sets.py FOLDER

Slots 0 and 2 are a process set. Slot 1 is killed before step 4. Slot 3 comes by step 8, but not
before the others have gone on as two. Slot 2 gets SIGTERM before step 12. It is replaced by slot 4
until H, which sees FOLDER/two, says that two are wanted. Each rank that ends well leaves a line of
JSON in FOLDER.
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

STEPS = 16
folder, slot = pathlib.Path(sys.argv[1]), int(os.environ["SMDDP_RENDEZVOUS_SLOT"])
if slot == 3:
    newcomers.await_size(folder, 2)
elif slot == 4:
    newcomers.await_answer(folder)
pair = hvd.ProcessSet([0, 2])
hvd.init(process_sets=[pair])
lone = hvd.add_process_set([1])
total = tf.Variable(0, dtype=tf.int64)
seen, steps, traces = [], [], []
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.build([None, 1])
model.compile(tf.keras.optimizers.SGD(0.0), "mse")
warmup = hvd.callbacks.LearningRateWarmupCallback(0.3, warmup_epochs=5, steps_per_epoch=1)


@tf.function
def add(value):
    traces.append(1)
    total.assign_add(hvd.allreduce(value, op=hvd.Sum, process_set=pair))


def error_of(process_set):
    try:
        hvd.allreduce(1, process_set=process_set)
    except ValueError as error:
        return str(error)
    return ""


def wait_until(state, there):
    end = time.monotonic() + 100
    while not there() and time.monotonic() < end:
        state.check_host_updates()
        time.sleep(0.05)


@hvd.elastic.run
def train(state):
    own = hvd.add_process_set([0])  # of this call only
    if own.included():
        assert int(hvd.allreduce(5, op=hvd.Sum, process_set=own)) == 5
    x = np.ones([1, 1], np.float32)
    rate = model.fit(x, x, verbose=0, callbacks=[warmup]).history["lr"][0]
    seen.append([hvd.size(), pair.ranks, lone.ranks, rate])
    newcomers.note_size(folder, hvd.size())
    while state.step < STEPS:
        if (slot, state.step) == (1, 4):
            os.kill(os.getpid(), signal.SIGKILL)
        if state.step == 8:
            wait_until(state, lambda: hvd.size() == 3)
        if state.step == 12:
            if slot == 2:
                os.kill(os.getpid(), signal.SIGTERM)
                (folder / "two").touch()
            wait_until(state, lambda: hvd.size() == 2)
        if pair.included():
            add(tf.constant(slot + 1, tf.int64))
        steps.append(state.step)
        state.step += 1
        state.commit()


try:
    optimizer = tf.keras.optimizers.SGD(0.1)
    hvd.DistributedOptimizer(optimizer, sync_every=4, fragment_sync_delay=1)
    raise AssertionError("an exchange would travel while ranks change")
except ValueError as error:
    assert "fragment_sync_delay=1 in an elastic job" in str(error), error
assert slot < 3 or "until then it is alone" in error_of(pair)
train(hvd.elastic.TensorFlowState([total], step=0))
line = {"slot": slot, "seen": seen, "steps": steps, "total": int(total), "traces": len(traces)}
with open(folder / "results", "a") as results:
    results.write(json.dumps({**line, "errors": [error_of(pair), error_of(lone)]}) + "\n")
