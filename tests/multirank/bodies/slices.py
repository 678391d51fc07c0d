"""What ranks do in test_slices.py."""

import numpy as np
import tensorflow as tf
from checks import WAYS, equal, raises
from harness import rank, report, size

import smddp_tf as hvd


def _integers(way, dtype, rows):
    """Row 0 and twice row 1, of a table of so many rows."""
    values = tf.constant([[rank + 1, -rank - 1], [1, -1], [rank, 1]], dtype)

    @WAYS[way]
    def sparse():
        one = tf.IndexedSlices(values, tf.constant([0, 1, 1]), tf.constant([rows, 2]))
        reduced = hvd.allreduce(one)
        assert reduced.dtype == values.dtype
        return tf.convert_to_tensor(reduced)

    @WAYS[way]
    def dense():
        first, *others = tf.unstack(values)
        table = tf.stack([first, tf.add_n(others), *[tf.zeros_like(first)] * (rows - 2)])
        return hvd.allreduce(table)

    equal(sparse(), tf.cast(dense(), tf.float64).numpy(), way, dtype, rows)


def averages_of_integers():
    """Those of rows are those of a table, whichever of the two is exchanged."""
    for way in WAYS:
        for dtype in ("int8", "int32", "int64"):
            for rows in (3, 200):
                _integers(way, dtype, rows)

    @tf.function(jit_compile=True)
    def shapeless():
        return hvd.allreduce(tf.IndexedSlices(tf.constant([[1]]), tf.constant([0]))).values

    with raises(tf.errors.UnimplementedError, "without dense_shape"):
        shapeless()
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
