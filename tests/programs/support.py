"""What generated programs are made of: inputs, and records of what came out.

A collective's place in a program is its site. Its turn says when it runs: the step, then the loop
iterations and calls that lead to it, four to a level. Every rank gives a site and turn its own
input, such that only the right ranks' inputs, of the right site and turn, make the right result:
sums are exact in float32, and one exchanged input changes them.

A record is [checks, wrong ones, site, turn, wanted, got], the last four of the first wrong check.
Programs return records, so nothing but the program itself puts their collectives into order.
"""

import json
import os
import random
import threading
import time

import numpy as np
import tensorflow as tf

import smddp_tf as hvd

ELEMENTS = 12  # that 2, 3 and 4 ranks divide
SITES = 64  # the most that a program has
FIELDS = 6
THREAD_SECONDS = 60


def _slow(site, turn):
    """Whether this rank is late here: each is at other sites and turns."""
    return (turn * 37 + site * 101 + hvd.rank() * 59) % 11 < 3


def _busy(site, turn):
    """0.0, after a while of computing on a rank that is late."""
    rounds = tf.where(_slow(site, turn), 60 + (turn * 7 + site) % 80, 0)
    _, x = tf.while_loop(
        lambda i, _: i < rounds, lambda i, x: (i + 1, tf.tanh(x)), (0, tf.fill([2048], 0.5))
    )
    return tf.minimum(tf.reduce_max(tf.abs(x)), 0.0)


def _sleep(site, turn):
    """0.0, after a rank that is late slept."""

    def sleep(turn):
        time.sleep(0.004 if _slow(site, int(turn)) else 0.0)
        return np.float32(0)

    late = tf.numpy_function(sleep, [turn], tf.float32)
    late.set_shape([])
    return late


_LATE = {"busy": _busy, "sleep": _sleep}


def _counting(elements):
    return np.arange(elements, dtype=np.float32)


def _base(site, turn):
    return tf.cast(site + SITES * turn, tf.float32)


@tf.autograph.experimental.do_not_convert
def value(site, turn, late="", elements=ELEMENTS):
    """This rank's input."""
    turn = tf.convert_to_tensor(turn, tf.int32)
    x = _base(site, turn) * float(hvd.rank() + 1) + _counting(elements)
    return x + _LATE[late](site, turn) if late else x


@tf.autograph.experimental.do_not_convert
def zero(x):
    """0.0, once x exists, of which there may be no elements."""
    return tf.minimum(tf.reduce_max(tf.concat([tf.reshape(tf.abs(x), [-1]), [0.0]], 0)), 0.0)


def splits(site) -> list:
    """What each rank sends to each in that alltoall: often nothing, sometimes much."""
    draw = random.Random(site)
    most = draw.choice([4, 4, 100, 100, 20_000])
    sizes = [[draw.randint(0, most) for _ in range(hvd.size())] for _ in range(hvd.size())]
    idle = draw.choice([None, *range(hvd.size())])
    return [
        [0 if r == idle or draw.random() < 0.4 else n for n in row] for r, row in enumerate(sizes)
    ]


def sent(site) -> int:
    """How many elements this rank sends in all."""
    return sum(splits(site)[hvd.rank()])


def _own_rows(rows):
    each = rows.shape[0] // hvd.size()
    return rows[hvd.rank() * each : (hvd.rank() + 1) * each]


def _of_each(base, rows):
    return tf.concat([base * float(rank + 1) + rows for rank in range(hvd.size())], 0)


def _rows_for_this_rank(site):
    for r, row in enumerate(splits(site)):
        begin = sum(row[: hvd.rank()])
        yield r, _counting(sum(row))[begin : begin + row[hvd.rank()]]


def _wanted(how, base, elements, site):
    """The result of the collective `how` over all ranks' value()."""
    ranks, rows = hvd.size(), _counting(elements)
    if how.startswith("root"):
        return base * float(int(how[4:]) + 1) + rows
    if how == "max":
        return base * float(ranks) + rows
    if how == "gather":
        return _of_each(base, rows)
    if how == "splits":
        return tf.concat([base * float(r + 1) + rows for r, rows in _rows_for_this_rank(site)], 0)
    if how == "alltoall":
        return _of_each(base, _own_rows(rows))
    if how == "scatter":
        rows = _own_rows(rows)
    return base * float(ranks * (ranks + 1) // 2) + ranks * rows


@tf.autograph.experimental.do_not_convert
def check(site, turn, got, how="sum", elements=ELEMENTS):
    """A record of one result."""
    turn = tf.convert_to_tensor(turn, tf.int32)
    wanted = _wanted(how, _base(site, turn), elements, site)
    # One more element, since a rank may get nothing.
    got = tf.concat([tf.reshape(got, wanted.shape), [0.0]], 0)
    wanted = tf.concat([wanted, [0.0]], 0)
    differs = tf.not_equal(got, wanted)
    first = tf.argmax(tf.cast(differs, tf.int32))
    wrong = tf.cast(tf.reduce_any(differs), tf.float32)
    pair = [tf.gather(wanted, first), tf.gather(got, first)]
    fields = [1.0, wrong, float(site), tf.cast(turn, tf.float32), *pair]
    return tf.stack([tf.cast(one, tf.float64) for one in fields])


@tf.autograph.experimental.do_not_convert
def merge(*records):
    """One record of several."""
    return merge_rows(tf.stack(records))


@tf.autograph.experimental.do_not_convert
def merge_rows(records):
    """One record of a matrix of them."""
    first = tf.argmax(records[:, 1])
    merged = tf.concat([tf.reduce_sum(records[:, :2], 0), tf.gather(records, first)[2:]], 0)
    return tf.reshape(merged, [FIELDS])


@tf.autograph.experimental.do_not_convert
def nothing():
    """The record of no checks."""
    return tf.zeros([FIELDS], tf.float64)


def in_threads(turn, *functions):
    """Calls each function in a thread of its own; one record of all."""
    results = [TimeoutError(f"no result after {THREAD_SECONDS} s")] * len(functions)

    def call(i):
        try:
            results[i] = functions[i](turn)
        except Exception as error:  # noqa: BLE001 - raised below, in the caller's thread
            results[i] = error

    threads = [threading.Thread(target=call, args=[i], daemon=True) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(THREAD_SECONDS)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return merge(*results)


def shuffled(items, step):
    """The items in an order that differs by rank and step."""
    return list(np.random.default_rng([step, hvd.rank()]).permutation(items))


class Progress:
    """What this rank did, a JSON line each, so that nothing is lost when the job is ended."""

    def __init__(self, folder) -> None:
        self._file = open(os.path.join(folder, f"progress{hvd.rank()}"), "a", buffering=1)

    def write(self, event, seed, **more):
        self._file.write(json.dumps({"event": event, "seed": seed, **more}) + "\n")
