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
LARGE = 1_100_000  # elements, which every pair of ranks exchanges


def _pattern(r, n=N):
    return (np.arange(n) % 1000 + 1000 * r).astype(np.float32)


def _move_in(way, wrap):
    one = tf.constant(_pattern(rank))
    for root in (0, size - 1):
        got = wrap(lambda root=root: hvd.broadcast(one, root_rank=root))()
        equal(got, _pattern(root), way, "broadcast")
    want = np.concatenate([_pattern(r) for r in range(size)])
    equal(wrap(lambda: hvd.allgather(one))(), want, way, "allgather")
    parts = tf.reshape(tf.tile(tf.constant(_pattern(rank, LARGE)), [size]), [size * LARGE])
    want = np.concatenate([_pattern(r, LARGE) for r in range(size)])
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
    # A rank that sends to all and receives nothing, and one that receives from all.
    for scatters in (True, False):
        splits = [LARGE if (rank if scatters else p) == 0 else 0 for p in range(size)]
        sent = np.concatenate([_pattern(rank, n) + p for p, n in enumerate(splits)])
        got, received = hvd.alltoall(sent, splits=splits)
        senders = range(size) if rank == 0 and not scatters else [0] if scatters else []
        want = [_pattern(r, LARGE) + rank for r in senders]
        equal(got, np.concatenate([np.zeros(0, np.float32), *want]), "scatter", scatters)
        equal(received, [LARGE if r in senders else 0 for r in range(size)], "rows", scatters)
    # Uneven parts, some empty, on a process set.
    evens = hvd.add_process_set(list(range(0, size, 2)))
    if rank % 2 == 0:
        own = _pattern(rank, 0 if rank == 2 else 30_000 + rank)
        want = [_pattern(r, 0 if r == 2 else 30_000 + r) for r in range(0, size, 2)]
        equal(hvd.allgather(own, process_set=evens), np.concatenate(want), "set")
    report(checks=checked())


def a_peer_dies():
    x = tf.ones([4_000_000]) * rank
    splits = [tf.shape(x)[0] if r == (rank + 1) % size else 0 for r in range(size)]
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
