"""What ranks do in test_second_derivatives.py."""

import tensorflow as tf
from checks import WAYS, checked, equal
from harness import rank, report, size

import smddp_tf as hvd

OWN = [rank + 1.0, 2.0]


def _second(collective):
    """Gradients of a sum of cubes, and of the sum of their squares."""
    x = tf.constant(OWN)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            loss = tf.reduce_sum(collective(x) ** 3)
        first = inner.gradient(loss, x)
        squares = tf.reduce_sum(first * first)
    return first, outer.gradient(squares, x)


def of_averages():
    """Gradients of an allgather and a broadcast are averages, and so are those of these."""
    for way, wrap in WAYS.items():
        for _ in range(3):
            first, second = wrap(lambda: _second(hvd.allgather))()
            equal(first, [3 * one**2 for one in OWN], way, "allgather")
            equal(second, [36 * one**3 / size for one in OWN], way, "allgather, second")

            first, second = wrap(lambda: _second(lambda x: hvd.broadcast(x, 1)))()
            at_root = [0, 0] if rank != 1 else [3 * one**2 for one in OWN]
            equal(first, at_root, way, "broadcast")
            at_root = [0, 0] if rank != 1 else [36 * one**3 / size for one in OWN]
            equal(second, at_root, way, "broadcast, second")
    equal(hvd.allreduce(tf.constant(1.0), op=hvd.Sum), size, "afterwards")
    report(checks=checked())
