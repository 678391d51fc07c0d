"""What ranks do in test_single_copy.py."""

import os

import machine_time
import no_readv
import numpy as np
import tensorflow as tf
from checks import WAYS, checked, equal
from harness import rank, report, report_in_time, size

import smddp_tf as hvd

N = 40_000


def _pattern(r, n=N):
    return (np.arange(n) % 1000 + 1000 * r).astype(np.float32)


def _move_in(way, wrap):
    one = tf.constant(_pattern(rank))
    for root in (0, size - 1):
        got = wrap(lambda root=root: hvd.broadcast(one, root_rank=root))()
        equal(got, _pattern(root), way, "broadcast")
    want = np.concatenate([_pattern(r) for r in range(size)])
    equal(wrap(lambda: hvd.allgather(one))(), want, way, "allgather")
    parts = tf.reshape(tf.tile(one, [size]), [size * N])
    equal(wrap(lambda: hvd.alltoall(parts))(), want, way, "alltoall")


def move(refused=()):
    """refused: ranks that may not read another's memory from now on."""
    if rank in refused:
        no_readv.refuse()
    for way, wrap in WAYS.items():
        _move_in(way, wrap)
    variables = [tf.Variable(_pattern(rank, n)) for n in (1, 70_000, 0, 33, 20_000)]
    hvd.broadcast_variables(variables, root_rank=1)
    for v in variables:
        equal(v, _pattern(1, v.shape[0]), "variables")
    # What the root does with its tensor afterwards is not seen by anybody.
    for i in range(50):
        v = tf.Variable(tf.fill([N], float(i + rank)))
        got = hvd.broadcast(v, root_rank=0)
        v.assign(tf.zeros([N]))
        equal(got, i, "overwritten")
    # Uneven parts, some empty, on a process set.
    evens = hvd.add_process_set(list(range(0, size, 2)))
    if rank % 2 == 0:
        own = _pattern(rank, 0 if rank == 2 else 30_000 + rank)
        want = [_pattern(r, 0 if r == 2 else 30_000 + r) for r in range(0, size, 2)]
        equal(hvd.allgather(own, process_set=evens), np.concatenate(want), "set")
    report(checks=checked())


def a_peer_dies():
    x = tf.ones([4_000_000]) * rank
    splits = [tf.shape(x)[0] - size + 1] + [1] * (size - 1)
    hvd.broadcast(x, root_rank=1)
    begin = machine_time.now()
    try:
        for i in range(10**6):
            if rank == 1 and i == 20:
                os.kill(os.getpid(), 9)
            hvd.alltoall(x, splits=splits)
    except tf.errors.OpError as error:
        report_in_time(text=error.message, seconds=machine_time.now() - begin)
        raise
