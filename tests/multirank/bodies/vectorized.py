"""What ranks do in test_vectorized.py."""

import numpy as np
import tensorflow as tf
from checks import WAYS, checked, equal, raises, total
from harness import rank, report, size

import smddp_tf as hvd
from bodies.order import late, mine

ROWS = np.arange(400.0).reshape(100, 4)


def _jacobians(way, wrap):
    x = tf.Variable(tf.range(1.0, 41.0))

    def jacobian():
        with tf.GradientTape() as tape:
            y = hvd.allreduce(x * x * (rank + 1.0), op=hvd.Sum)
        return tape.jacobian(y, x)

    for _ in range(3):
        equal(wrap(jacobian)(), np.diag(2 * size * (rank + 1) * x.numpy()), way, "jacobian")


def _maps(way, wrap):
    def row(v):
        summed, largest = hvd.allreduce(v, op=hvd.Sum), hvd.allreduce(v * 2, op=hvd.Max)
        sent = hvd.broadcast(tf.cast(v, tf.int32), 1)
        return summed + largest, hvd.allgather(v), sent, hvd.allreduce(tf.ones([2]), op=hvd.Sum)

    rows = tf.constant(ROWS, tf.float32) * (rank + 1)
    for _ in range(3):
        got = wrap(lambda: tf.vectorized_map(row, rows))()
        gathered = np.concatenate([ROWS * (r + 1) for r in range(size)], 1)
        wanted = (ROWS * (total + 2 * size), gathered, ROWS * 2, np.full([100, 2], size))
        for one, want in zip(got, wanted, strict=True):
            assert one.shape == want.shape
            equal(one, want, way, "vectorized_map")


def _distributed_tape():
    w = tf.Variable([1.0, 2.0])

    def row(v):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * v)
        return hvd.DistributedGradientTape(tape).gradient(loss, w)

    with raises(ValueError, "cannot be called inside tf.vectorized_map()"):
        tf.vectorized_map(row, tf.ones([3, 2]))


def between_collectives():
    """Two of one shape in the function that is mapped, others of the function around it.

    The ranks' graphs differ, so XLA takes another order on each where none is kept.
    """
    rows = tf.constant([[1.0], [2.0], [4.0]]) * (rank + 1)
    turned = slice(None, None, 1 if rank == 0 else -1)

    def row(v):
        first, second = hvd.allreduce(v, op=hvd.Sum), hvd.allreduce(1000.0 * v, op=hvd.Sum)
        return tf.concat([first, second], 0)  # in one order: TensorFlow converts them from here

    def step(turn):
        before = hvd.allreduce(late(mine(1), turn % size == rank)[None], op=hvd.Sum)
        mapped = tf.reshape(tf.vectorized_map(row, rows), [-1])
        after = hvd.allreduce(late(mine(100), turn % size != rank)[None], op=hvd.Sum)
        return tf.sort(tf.concat([before, mapped, after][turned], 0))

    wanted = np.array([1.0, 1.0, 2.0, 4.0, 100.0, 1000.0, 2000.0, 4000.0])
    for way, wrap in WAYS.items():
        call = wrap(step)
        for turn in range(6):
            equal(call(tf.constant(turn)), wanted * total, way, turn)
    report(checks=checked())


def branches():
    """In a branch that no row takes, what loops over the rows gives has a shape too."""
    rows = tf.constant(ROWS[: 2 * size], tf.float32) * (rank + 1)

    def gathers(v):
        return tf.reshape(hvd.allgather(v), [size, 4])

    def scatters(v):
        parts = hvd.reducescatter(tf.tile(v, [size]), op=hvd.Sum)
        return tf.stack([parts] * size) + tf.reshape(hvd.alltoall(tf.tile(v, [size])), [size, 4])

    each = np.stack([ROWS[: 2 * size] * (r + 1) for r in range(size)], 1)
    wanted = each, each + each.sum(1, keepdims=True)
    for wrap in (lambda f: f, tf.function):
        call = wrap(lambda t: tf.vectorized_map(lambda v: _branch(v, t, gathers, scatters), rows))
        for turn in range(4):
            # All rows take one, all the other, or some each.
            at = [-1.0, 1e9, 12.0][turn % 3]
            got = call(tf.constant(at, tf.float32))
            for i, row in enumerate(ROWS[: 2 * size]):
                equal(got[i], wanted[int(row[0] <= at)][i], turn, i)
    report(checks=checked())


def _branch(v, at, gathers, scatters):
    first = hvd.broadcast(v, 0)[0]
    return tf.cond(first > at, lambda: gathers(v), lambda: scatters(v))


def maps_and_jacobians():
    for way, wrap in WAYS.items():
        _jacobians(way, wrap)
        _maps(way, wrap)
    _distributed_tape()
    equal(hvd.allreduce(tf.constant(1.0), op=hvd.Sum), size, "afterwards")
    report(checks=checked())
