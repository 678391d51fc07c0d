"""What ranks do in test_join.py."""

import sys
import threading
import time

import numpy as np
import tensorflow as tf
from checks import checked, equal, raises, total
from harness import rank, report, size

import smddp_tf as hvd

FailedPrecondition = tf.errors.FailedPreconditionError


class _Model:
    """Two variables, and a table whose gradients are sparse."""

    def __init__(self):
        self.big, self.small = tf.Variable(tf.zeros([300000])), tf.Variable(tf.zeros([3]))
        self.table = tf.Variable(tf.zeros([4, 2]))

    def gradients(self, sparse=False):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.big) * (rank + 1.0) + tf.reduce_sum(self.small)
            if sparse:
                loss += tf.reduce_sum(tf.gather(self.table, [rank % 4])) * (rank + 1.0)
        sources = [self.big, self.small, self.table] if sparse else [self.big, self.small]
        return hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(loss, sources)


def _check_gradients(got, here, i):
    equal(got[0], sum(r + 1 for r in here), "tape", i)
    equal(got[1], len(here), "tape", i)


def _check_collectives(here):
    """What those that are not in `here` serve with zeros."""
    equal(hvd.allreduce(tf.constant(rank + 1.0), op=hvd.Sum), sum(r + 1 for r in here))
    mean = float(np.float32(len(here)) * np.float32(1 / size))
    equal(hvd.allreduce(tf.ones([100000])), mean, "average")
    rows = hvd.allgather(tf.fill([rank, 2], rank))
    equal(rows[:, 0], np.repeat(here, here), "allgather")
    equal(hvd.broadcast(tf.constant(rank), size - 1), size - 1)
    hvd.barrier()


def _check_refusals():
    """Once rank 0 has joined."""
    rows_of_all = tf.function(lambda: hvd.allgather(tf.ones([2])), jit_compile=True)
    for call in (
        lambda: hvd.allreduce(tf.constant(1.0), op=hvd.Max),
        lambda: hvd.broadcast(tf.constant(1.0), 0),
        lambda: hvd.reducescatter(tf.ones([size])),
        rows_of_all,  # one rank has none
    ):
        with raises(FailedPrecondition, "join()"):
            call()
    with raises(tf.errors.InvalidArgumentError, "rank 0 has called join()"):
        hvd.alltoall(tf.ones([size]))


def uneven_steps():
    model = _Model()
    step = tf.function(model.gradients)
    for round_ in range(3):
        # Rank r takes 2 + r steps, the last rank joins last; in step i ranks >= i - 1 take part.
        for i in range(2 + rank):
            here = [r for r in range(size) if i < 2 + r]
            got = step(i % 2 == 0)
            _check_gradients(got, here, i)
            if i % 2 == 0:
                dense = np.zeros((4, 2))
                for r in here:
                    dense[r % 4] += r + 1
                equal(tf.convert_to_tensor(got[2]), dense, "sparse", i)
            _check_collectives(here)
            if i >= 2:
                _check_refusals()
        last = hvd.join() if round_ < 2 else tf.function(hvd.join)()
        equal(last, size - 1, "last")
        # Everything goes on with all ranks.
        equal(model.gradients(True)[0], total)
        equal(hvd.allreduce(tf.constant(1.0), op=hvd.Sum), size)
    report(checks=checked())


def ends_without_joining():
    if rank == 1:
        report(ended=True)
        sys.exit(0)
    with raises(tf.errors.UnknownError, "rank 1 has ended before it called join()"):
        hvd.join()
    report(ended=False)


def _check_between_nodes(got, here, i):
    _check_gradients(got, here, i)
    equal(hvd.allreduce(tf.constant(rank + 1.0), op=hvd.Sum), sum(r + 1 for r in here))
    x16 = tf.cast(tf.ones([5000]) * (rank + 1.0), tf.bfloat16)
    equal(hvd.allreduce(x16, op=hvd.Sum), sum(r + 1 for r in here), "bfloat16")
    hvd.barrier()
    if len(here) == size:
        equal(hvd.broadcast(tf.constant(rank), 1), 1)
        return
    for call in (
        lambda: hvd.allreduce(tf.constant(1.0), op=hvd.Max),
        lambda: hvd.broadcast(tf.constant(1.0), here[0]),
        lambda: hvd.allgather(tf.ones([2])),
        lambda: hvd.alltoall(tf.ones([size])),
        lambda: hvd.reducescatter(tf.ones([size])),
    ):
        with raises(FailedPrecondition, "join()"):
            call()


def between_nodes():
    step = tf.function(_Model().gradients)
    orders = [list(range(size)), list(range(size))[::-1], [r % 2 for r in range(size)]]
    for steps in orders:
        # Rank r takes steps[r] steps, so that each node is the first to be without data.
        for i in range(steps[rank]):
            here = [r for r in range(size) if i < steps[r]]
            _check_between_nodes(step(), here, i)
        if len(set(steps)) == size and steps[rank] == size - 1:
            time.sleep(0.2)
        last = int(hvd.join())
        if len(set(steps)) == size:
            equal(last, steps.index(size - 1), "last")
        # Everything goes on with all ranks, at once.
        equal(hvd.allreduce(tf.constant(1.0), op=hvd.Sum), size)
        equal(step()[0], total)
        equal(hvd.allgather(tf.fill([1], last)), last, "all were told the same")
    report(checks=checked())


def in_threads():
    """Two threads, whose collectives no rank has in the order of another; the first ranks end.

    Threads begin each step together: if one were ahead, a rank could wait in the next step for one
    that waits in this step.
    """
    failures, meet = [], threading.Barrier(2, timeout=60)

    def run(name, steps):
        try:
            for i in range(steps[rank]):
                here = [r for r in range(size) if i < steps[r]]
                meet.wait()
                found = hvd.allreduce(tf.constant(rank + 1.0), op=hvd.Sum, name=f"{name}.{i}")
                equal(found, sum(r + 1 for r in here), name, i)
                time.sleep((rank * 7 + i) % 3 * 1e-3)
        except Exception as error:  # the main thread raises it
            failures.append(error)

    orders = [list(range(1, size + 1)), list(range(size, 0, -1)), [0, *[5] * (size - 1)]]
    for number, steps in enumerate(3 * orders):
        threads = [
            threading.Thread(target=run, name=name, args=(f"{name} {number}", steps))
            for name in ("left", "right")
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        hvd.join()
        equal(hvd.allreduce(tf.constant(1.0), op=hvd.Sum), size)
    report(checks=checked())


def what_follows_at_once():
    for i in range(300):
        if i % 3 == rank % 3:
            hvd.allreduce(tf.constant(1.0), op=hvd.Sum)
        hvd.join()
        # Begun while slower ranks may not have left join() yet.
        equal(hvd.allreduce(tf.constant(rank + 1.0), op=hvd.Sum), total, i)
    report(checks=checked())


def queries():
    pair = hvd.add_process_set([0, 1])

    @tf.function
    def ask():
        return (
            hvd.rank_op(),
            hvd.size_op(),
            hvd.local_rank_op(),
            hvd.local_size_op(),
            hvd.size_op(pair.process_set_id),
            hvd.process_set_included_op(1),
        )

    for _ in range(2):
        got = [int(x) for x in ask()]
        assert got == [rank, 3, hvd.local_rank(), 3, 2, int(rank < 2)], got
    assert hvd.rank_op().shape == [] and int(hvd.rank_op()) == rank
    hvd.remove_process_set(pair)
    with raises(tf.errors.InvalidArgumentError, "process set 1"):
        hvd.size_op(1)
    report(checks=1)
    hvd.shutdown()
    with raises(FailedPrecondition, "init()"):
        ask()
