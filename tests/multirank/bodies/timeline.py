"""What ranks do in test_timeline.py."""

import os
import time

import tensorflow as tf
from checks import raises
from harness import OUT, rank, report, size, without_init

import smddp_tf as hvd


def writes_a_trace():
    path = str(OUT / "trace.json")
    hvd.start_timeline(path)
    with raises(ValueError, "already"):
        hvd.start_timeline(path)
    for _ in range(20):
        hvd.allreduce(tf.ones([1000]), name="regular")
    time.sleep(0.5 if rank == size - 1 else 0)
    hvd.allreduce(tf.ones([10]), name='slow "one"')
    v = [tf.Variable(tf.zeros([200000])) for _ in range(3)]

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = sum(tf.reduce_sum(x) for x in v)
        return hvd.DistributedGradientTape(tape, num_groups=3).gradient(loss, v)

    for _ in range(5):
        step()
    hvd.stop_timeline()
    hvd.allreduce(tf.ones([1]), name="after")
    hvd.stop_timeline()
    with raises(ValueError, "cannot be written", "nowhere"):
        hvd.start_timeline(str(OUT / "nowhere" / "trace.json"))
    report(done=True)


def is_killed():
    for _ in range(30):
        hvd.allreduce(tf.ones([1000]), name="regular")
    time.sleep(2.5)
    report(done=True)
    if rank == 1:
        os.kill(os.getpid(), 9)
    hvd.barrier()


@without_init
def several_jobs():
    """Launcher ranks 2 and 0 are one job, in this order, and rank 1 is alone."""
    hvd.init(comm=[2, 0])
    name = f"of job {[2, 0] if rank != 1 else [1]}"
    for _ in range(10):
        hvd.allreduce(tf.ones([10]), name=name)
    report(rank=hvd.rank(), size=hvd.size(), name=name)
    hvd.shutdown()
