"""What ranks do in test_slices.py."""

import numpy as np
import tensorflow as tf
from checks import WAYS, equal
from harness import rank, report, size

import smddp_tf as hvd


def _integers(way, dtype, rows):
    """Row 0 and twice row 1, of a table of so many rows."""
    values = tf.constant([[rank + 1, -rank - 1], [1, -1], [rank, 1]], dtype)

    @WAYS[way]
    def sparse():
        one = tf.IndexedSlices(values, tf.constant([0, 1, 1]), tf.constant([rows, 2]))
        reduced = hvd.allreduce(one)
        assert reduced.dtype == (tf.float32 if dtype == "int8" else tf.float64)
        return tf.convert_to_tensor(reduced)

    want = np.zeros([rows, 2])
    for r in range(size):
        want[:2] += [[r + 1, -r - 1], [1 + r, 0]]
    # Each rank's part is rounded in the type of the average, and so is their sum.
    assert np.allclose(sparse(), want / size, rtol=1e-6, atol=0), (way, dtype, rows)


def averages_of_integers():
    """They are floats, as in Horovod, whether rows are exchanged or a table."""
    for way in WAYS:
        for dtype in ("int8", "int32", "int64"):
            for rows in (3, 200):
                _integers(way, dtype, rows)

    @tf.function(jit_compile=True)
    def shapeless():
        return hvd.allreduce(tf.IndexedSlices(tf.constant([[size]]), tf.constant([0]))).values

    equal(shapeless(), 1.0)
    report()


def _penalty(tape_of, table, ids):
    """The gradient of the squared norm of a gradient, both of them of all ranks' ids."""
    with tape_of(tf.GradientTape()) as outer:
        with tape_of(tf.GradientTape()) as inner:
            loss = tf.reduce_mean(tf.gather(table, ids) ** 3)
        first = tf.convert_to_tensor(inner.gradient(loss, table))
        penalty = tf.reduce_sum(first**2)
    return tf.convert_to_tensor(outer.gradient(penalty, table))


def second_gradients():
    """They are one process's, for gradients that are exchanged as rows or as a table."""
    every = tf.constant([[[r, r + 1], [2, r + 2]] for r in range(size)])
    for way, wrap in WAYS.items():
        for rows in (5, 500):
            table = tf.Variable(tf.reshape(tf.range(rows * 2, dtype=tf.float32), [rows, 2]) / 10)
            want = _penalty(lambda tape: tape, table, tf.reshape(every, [-1, 2]))
            together = wrap(
                lambda ids, table=table: _penalty(hvd.DistributedGradientTape, table, ids)
            )
            got = together(every[rank])
            # Some ulps of numbers up to 1.
            assert np.allclose(got, want, atol=1e-6), (way, rows, got, want)
    report()


def unknown_dimensions():
    """Rows of a table and of ids whose numbers of dimensions only each step knows."""
    for known in (tf.TensorShape(None), tf.TensorShape([None, 2])):
        table = tf.Variable(tf.ones([9, 2]), shape=known)

        @tf.function(input_signature=[tf.TensorSpec(None, tf.int64)])
        def step(ids, table=table):
            with hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum) as tape:
                loss = tf.reduce_sum(tf.gather(table, ids)) * (rank + 1)
            return tf.convert_to_tensor(tape.gradient(loss, table))

        want = np.zeros([9, 2])
        for r in range(size):
            want[[0, 1, 2, r + 3]] += r + 1
        equal(step(tf.constant([[0, 1], [2, rank + 3]], tf.int64)), want)
    report()
