"""What ranks do in test_second_derivatives.py."""

import numpy as np
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


@tf.function(jit_compile=True)
def _sum_of_squares(x):
    return hvd.allreduce(x * x, op=hvd.Sum)


def _looped(x):
    def body(i, y):
        return i + 1, _sum_of_squares(y)

    return tf.while_loop(lambda i, _: i < 2, body, (0, x), maximum_iterations=2)[1]


def _gradient(function, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x)


def _jacobian(x):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = _looped(x)
    return tape.jacobian(y, x, experimental_use_pfor=False)


def of_compiled_loops():
    """Compiled functions with a collective, called in a loop: gradients of its gradient."""
    x = tf.constant(OWN)
    s = [sum((one + 1.0) ** 2 for one in range(size)), 4.0 * size]
    # y1 is s, the sum of the squares on all ranks, y2 is n s ** 2, and n ranks want its gradient.
    first = [4 * size**2 * one * each for one, each in zip(OWN, s, strict=True)]
    second = [
        4 * size**2 * (each + 2 * one * total)
        for one, each, total in zip(OWN, s, [size * (size + 1) / 2, 2.0 * size], strict=True)
    ]
    for way, wrap in WAYS.items():
        equal(wrap(lambda: _gradient(_looped, x))(), first, way)
        equal(wrap(lambda: _gradient(lambda x: _gradient(_looped, x), x))(), second, way)
        equal(wrap(lambda: _jacobian(x))(), np.diag(first), way, "jacobian")
    report(checks=checked())
