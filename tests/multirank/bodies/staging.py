"""What ranks do in test_staging.py."""

import numpy as np
import tensorflow as tf
from checks import equal, total
from harness import rank, report

import smddp_tf as hvd


def sums():
    """Long sums, short ones, and a reducescatter, through many chunks."""
    pattern = (np.arange(1_000_003) % 61).astype(np.float32)
    for _ in range(4):
        equal(hvd.allreduce(tf.constant(pattern * (rank + 1)), op=hvd.Sum), pattern * total)
    for n in (1500, 5001, 40_000):
        for _ in range(20):
            equal(
                hvd.allreduce(tf.constant(pattern[:n] * (rank + 1)), op=hvd.Sum),
                pattern[:n] * total,
            )
    rows = tf.constant(np.tile(pattern[:60_000], hvd.size()) * (rank + 1))
    equal(hvd.reducescatter(rows, op=hvd.Sum), pattern[:60_000] * total)
    report(**hvd.stats()["staging"])
