"""What ranks do in test_nans.py."""

import tensorflow as tf
from checks import WAYS, checked, equal
from harness import rank, report, size

import smddp_tf as hvd

FLOATS = [tf.float16, tf.bfloat16, tf.float32, tf.float64]
LENGTHS = (1, 5, 100000)
OPS = (hvd.Min, hvd.Max)


def _input(length, dtype, source):
    """Every third number is a NaN on the rank `source`; the others are the rank."""
    places = tf.range(length) % 3 == 0
    return tf.where(places & (rank == source), tf.constant(float("nan"), dtype), float(rank))


def _expect(got, op, first, *what):
    """As numpy.minimum and maximum; `first` is the place of got's first number in the tensor."""
    places = (tf.range(len(got)) + first) % 3 == 0
    equal(tf.cast(tf.math.is_nan(got), tf.int32), tf.cast(places, tf.int32), *what)
    equal(tf.boolean_mask(got, ~places), 0 if op == hvd.Min else size - 1, *what)


def _reduce(tensors):
    """Of each op: each tensor alone, all of them as a group, and their parts."""
    return [
        (
            [hvd.allreduce(x, op=op) for x in tensors],
            hvd.grouped_allreduce(tensors, op=op),
            [hvd.reducescatter(x, op=op) for x in tensors],
        )
        for op in OPS
    ]


def minima_and_maxima():
    for way, wrap in WAYS.items():
        reduce = wrap(_reduce)  # one function for all: compiling it is what takes time
        for source in range(size):
            tensors = [_input(length, dtype, source) for length in LENGTHS for dtype in FLOATS]
            for op, (alone, grouped, parts) in zip(OPS, reduce(tensors), strict=True):
                for x, *results, part in zip(tensors, alone, grouped, parts, strict=True):
                    what = way, source, op, x.dtype, len(x)
                    for got in results:
                        _expect(got, op, 0, *what)
                    each, odd = divmod(len(x), size)
                    _expect(part, op, rank * each + min(rank, odd), *what, "reducescatter")
    bits = tf.bitcast(hvd.allreduce(_input(5, tf.float32, size - 1), op=hvd.Max), tf.int32)
    equal(hvd.broadcast(bits, 0), bits, "the same NaN on all ranks")
    report(checks=checked())
