"""An elastic training as in Horovod's documents, in which a rank dies in each attempt but the last.

    smddprun -np 2 --max-restarts 2 python tests/scripts/elastic.py FOLDER loop

Rank 0 leaves in FOLDER where each attempt began, and whether the weights at the end are those of a
training without a failure. `fit` trains by fit() and callbacks.
"""

import os
import pathlib
import signal
import sys

import numpy as np
import tensorflow as tf

import smddp_tf.keras as hvd

EPOCHS, BATCHES, BATCH = 4, 3, 4
keras = tf.keras
folder, how = pathlib.Path(sys.argv[1]), sys.argv[2]
attempt = int(os.environ["SMDDP_RESTART"])
deaths = {(0, 5): 1, (1, 9): 0}  # (attempt, step): the rank that dies

hvd.init()
random = np.random.default_rng(hvd.rank())
x = random.normal(size=[BATCHES * BATCH, 5]).astype("float32")
y = x.sum(1, keepdims=True)


def make_model(seed):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
    model.build([None, 5])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
    model.compile(optimizer=optimizer, loss="mse", run_eagerly=False)
    return model


def make_state(seed):
    return hvd.elastic.KerasState(make_model(seed), epoch=0, batch=0)


def note(text):
    if hvd.rank() == 0:
        with open(folder / "notes", "a") as notes:
            notes.write(f"{attempt}: {text}\n")


def may_die(state):
    if deaths.get((attempt, state.epoch * BATCHES + state.batch)) == hvd.rank():
        os.kill(os.getpid(), signal.SIGKILL)


def loop(state):
    while state.epoch < EPOCHS:
        while state.batch < BATCHES:
            may_die(state)
            mine = slice(state.batch * BATCH, (state.batch + 1) * BATCH)
            state.model.train_on_batch(x[mine], y[mine])
            state.batch += 1
            if state.batch == 2:
                state.commit()
        state.epoch, state.batch = state.epoch + 1, 0
        state.commit()


def fit(state):
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    callbacks = [
        keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: may_die(state)),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
    ]
    while state.epoch < EPOCHS:
        state.model.fit(data.skip(state.batch), epochs=1, callbacks=callbacks, verbose=0)


@hvd.elastic.run
def train(state):
    note(f"{state.epoch}, {state.batch}")
    {"loop": loop, "fit": fit}[how](state)
    return "trained"


# What rank 0 begins with reaches the others.
state = make_state(seed=hvd.rank())
state.register_reset_callbacks([lambda: note("reset")])
assert train(state) == "trained"

deaths = {}
os.environ.pop("SMDDP_COMMITS", None)
calm = make_state(seed=0)
loop(calm)
pairs = zip(state.model.weights, calm.model.weights, strict=True)
same = all(np.array_equal(one.numpy(), other.numpy()) for one, other in pairs)
note("equal" if same else "other weights")
