"""What ranks do in test_handover.py."""

import threading

import numpy as np
import tensorflow as tf
from checks import checked, equal, raises, total
from harness import rank, report, size

import smddp_tf as hvd
from smddp_tf._src.graph import library


def _eager_ops():
    x = tf.range(4.0) + rank
    equal(hvd.allreduce(x, op=hvd.Sum), np.arange(4.0) * size + total - size)
    for got in hvd.grouped_allreduce([x, x * 2], op=hvd.Max)[1:]:
        equal(got, (np.arange(4.0) + size - 1) * 2)
    equal(hvd.allgather(tf.fill([rank + 1], rank)), np.repeat(np.arange(size), range(1, size + 1)))
    equal(hvd.broadcast(x, size - 1), np.arange(4.0) + size - 1)
    rows, received = hvd.alltoall(tf.fill([2 * size], rank), tf.fill([size], 2))
    equal(rows, np.repeat(np.arange(size), 2))
    equal(received, 2)
    equal(hvd.reducescatter(tf.ones([2 * size]) * (rank + 1), op=hvd.Sum), total)
    hvd.barrier()


def _graph_ops():
    x = tf.range(4.0) + rank
    rows, received = hvd.alltoall(tf.fill([2 * size], rank), tf.fill([size], 2))
    hvd.barrier()
    return (
        hvd.allreduce(x, op=hvd.Sum),
        hvd.allgather(tf.fill([rank + 1], rank)),
        hvd.broadcast(x, size - 1),
        rows,
        received,
        hvd.reducescatter(tf.ones([2 * size]) * (rank + 1), op=hvd.Sum),
    )


def _check_graph_ops(function):
    wants = (
        np.arange(4.0) * size + total - size,
        np.repeat(np.arange(size), range(1, size + 1)),
        np.arange(4.0) + size - 1,
        np.repeat(np.arange(size), 2),
        2,
        total,
    )
    for got, want in zip(function(), wants, strict=True):
        equal(got, want)


def _tape_step_of(weights):
    def step():
        with hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum, num_groups=8) as tape:
            sums = [tf.reduce_sum(w * (i + 1.0)) for i, w in enumerate(weights)]
            loss = tf.add_n(sums) * (rank + 1)
        return tape.gradient(loss, weights)

    return step


def _check_gradients(grads, *what):
    for i, grad in enumerate(grads):
        equal(grad, (i + 1.0) * total, *what)


def _fail_in_a_step(tape_step, graph_tape):
    """One rank fails in the middle of it, the other sees a mismatch or nothing; all goes on."""
    if rank == 0:

        @tf.function
        def failing():
            return tf.debugging.assert_equal(tf.constant(rank), 1), tape_step()

        with raises(tf.errors.InvalidArgumentError):
            failing()
    hvd.barrier()
    _check_gradients(graph_tape(), "after a failure")
    with raises(tf.errors.FailedPreconditionError, "Mismatched"):
        hvd.allreduce(tf.ones([2 + rank]))


def _in_process_sets():
    """Each with a collective under way when the other begins."""
    sets = [hvd.add_process_set([0]), hvd.add_process_set([1])]
    for _ in range(5):
        own = hvd.allreduce(tf.constant(rank + 1.0), op=hvd.Sum, process_set=sets[rank])
        equal(own, rank + 1)
        equal(hvd.allreduce(tf.constant(rank + 1.0), op=hvd.Sum), total)


def _by_name():
    """Two threads in one order or the other, and a session."""

    def in_thread(name):
        one = tf.function(lambda: hvd.allreduce(tf.constant(rank + 1.0), op=hvd.Sum, name=name))
        for _ in range(5):
            equal(one(), total, name)

    threads = [threading.Thread(target=in_thread, args=(name,)) for name in ("a", "b")]
    for thread in threads if rank else threads[::-1]:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        fetches = [hvd.allreduce(tf.constant(rank + 1.0), op=hvd.Sum, name=n) for n in ("c", "d")]
        for _ in range(5):
            for got in session.run(fetches if rank else fetches[::-1]):
                assert got == total, got


def every_op():
    tape_step = _tape_step_of([tf.Variable(tf.ones([3000])) for _ in range(8)])
    function, graph_tape = tf.function(_graph_ops), tf.function(tape_step)
    for _ in range(5):
        _eager_ops()
        _check_graph_ops(function)
        for step in (tape_step, graph_tape):
            _check_gradients(step(), "tape")
    kinds = [op.type for op in graph_tape.get_concrete_function().graph.get_operations()]
    assert kinds.count("SmddpPlanBucket") == 8, kinds
    _fail_in_a_step(tape_step, graph_tape)
    _in_process_sets()
    _by_name()
    assert int(tf.function(hvd.join)()) in range(size)
    kept = [int(n) for n in tf.__version__.split(".")[:2]] >= [2, 22]
    report(checks=checked(), how=library.handover(), kept=kept)
