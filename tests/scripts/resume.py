"""A script that goes on from its checkpoint when smddprun starts its job again.

    smddprun -np 2 --max-restarts 2 python tests/scripts/resume.py FOLDER

The gradient of a sample's loss is 1 for the sample's own weight and 0 for all others, so the
weights count how often each sample was used. Ranks are killed in the first two attempts.
"""

import os
import pathlib
import signal
import sys

import numpy as np
import tensorflow as tf

import smddp_tf as hvd

SAMPLES, BATCH, EPOCHS = 24, 2, 2

folder = pathlib.Path(sys.argv[1])
attempt = int(os.environ["SMDDP_RESTART"])
hvd.init()
weights = tf.Variable(tf.zeros([SAMPLES]), name="weights")
optimizer = tf.keras.optimizers.SGD(1.0)
optimizer.build([weights])
steps_done = tf.Variable(0, dtype=tf.int64, name="steps_done")

# The position in the data is saved with the weights; rank 0 says which checkpoint it is.
state = tf.train.Checkpoint(weights=weights, optimizer=optimizer, steps_done=steps_done)
manager = tf.train.CheckpointManager(state, str(folder / "checkpoints"), max_to_keep=2)
latest = hvd.broadcast_object(manager.latest_checkpoint, root_rank=0)
if latest:
    state.restore(latest).assert_consumed()
if hvd.rank() == 0:
    (folder / f"began{attempt}").write_text(str(int(steps_done)))

# (attempt, step) at which a rank dies, before and after others have taken part.
DEATHS = {(0, 5): 1, (1, 9): 0}


@tf.function
def train(samples):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(weights, samples))
    tape = hvd.DistributedGradientTape(tape, op=hvd.Sum, sparse_as_dense=True)
    optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])


per_step = BATCH * hvd.size()
steps_per_epoch = SAMPLES // per_step
for step in range(int(steps_done), EPOCHS * steps_per_epoch):
    epoch, within = divmod(step, steps_per_epoch)
    order = np.random.default_rng(epoch).permutation(SAMPLES)  # the same on all ranks
    batch = order[within * per_step :][hvd.rank() : per_step : hvd.size()]
    if DEATHS.get((attempt, step)) == hvd.rank():
        os.kill(os.getpid(), signal.SIGKILL)
    train(tf.constant(batch))
    steps_done.assign(step + 1)
    if step % 2 and hvd.rank() == 0:
        manager.save()
if hvd.rank() == 0:
    np.save(folder / "weights.npy", weights.numpy())
