"""What ranks do in test_scaled_averages.py."""

from fractions import Fraction

import tensorflow as tf
from checks import WAYS
from harness import rank, report, size

import smddp_tf as hvd

INTEGERS = [tf.int8, tf.uint8, tf.int32, tf.int64]
FACTORS = [(1, 0.5), (0.5, 1), (0.75, 1.25), (1, 0.875)]  # exact in float32


def _numbers(dtype, of_rank) -> list[int]:
    """Numbers whose sum passes the dtype's limit, and small ones that do not divide.

    Those of int64 add up within it, where the engine has nothing wider, with bits to spare for
    factors.
    """
    most = dtype.max // (64 if dtype == tf.int64 else 1)
    least = 0 if dtype == tf.uint8 else -most
    return [most - 3 * of_rank, least + of_rank, 3 + of_rank, 7 * (of_rank == 0)]


def _want(dtype, prescale, postscale) -> list[int]:
    """Scaled as float64 and truncated, summed, then scaled, divided and truncated, all exactly."""
    ranks = [_numbers(dtype, r) for r in range(size)]
    if prescale != 1:
        ranks = [[int(float(x) * prescale) for x in numbers] for numbers in ranks]
    sums = [sum(column) for column in zip(*ranks, strict=True)]
    return [int(Fraction(postscale) * total / size) for total in sums]


def averages():
    tensors = [tf.constant(_numbers(dtype, rank), dtype) for dtype in INTEGERS]
    count = 0

    def reduce():
        results = []
        for before, after in FACTORS:
            scales = {"prescale_factor": before, "postscale_factor": after}
            alone = [hvd.allreduce(x, **scales) for x in tensors]
            grouped = hvd.grouped_allreduce(tensors, **scales)
            rows = [hvd.reducescatter(tf.tile(x, [size]), **scales) for x in tensors]
            results.append((alone, grouped, rows))
        return results

    for way, wrap in WAYS.items():
        for factors, results in zip(FACTORS, wrap(reduce)(), strict=True):
            for dtype, *of_dtype in zip(INTEGERS, *results, strict=True):
                want = _want(dtype, *factors)
                for got in of_dtype:
                    assert got.dtype == dtype
                    assert got.numpy().tolist() == want, (way, dtype, factors, got, want)
                    count += 1
    report(checks=count)
