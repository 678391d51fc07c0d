"""Where TensorFlow gives no order, names do: threads, and sessions of TF1 graphs."""

import numpy as np
import pytest
from test_order import ENV, LATE

THREADS = """
import threading
def called(number):
    @tf.function
    def call(turn):
        x = late(mine(number + 1), (turn + number) % size == rank)
        first = hvd.allreduce(x, op=hvd.Sum, name=f"first{number}")
        return first + 100.0 * hvd.allreduce(mine(number + 1), op=hvd.Sum, name=f"second{number}")
    return call
wrong = []
def thread(number):
    call, wanted = called(number), (number + 1) * total * 101.0
    for turn in range(CALLS):
        try:
            got = float(call(tf.constant(turn)))
        except tf.errors.OpError as error:
            wrong.append(error.message[-400:])
            return
        if got != wanted:
            wrong.append((number, turn, got, wanted))
# Ranks start them in different orders.
threads = [threading.Thread(target=thread, args=[i], daemon=True) for i in range(COUNT)]
for one in threads[:: 1 if rank == 0 else -1]:
    one.start()
for one in threads:
    one.join(60)
assert not any(one.is_alive() for one in threads), "a thread still waits"
assert not wrong, f"rank {rank}: {wrong[0]}"
report(sum=float(hvd.allreduce(1.0, op=hvd.Sum)))
"""


@pytest.mark.parametrize(("threads", "inter_op"), [(2, 0), (5, 2)])
def test_functions_called_from_several_threads(job, threads, inter_op):
    """Also more of them than TensorFlow has threads to run operations."""
    configure = f"tf.config.threading.set_inter_op_parallelism_threads({inter_op})\n"
    body = (configure if inter_op else "") + LATE + THREADS.replace("COUNT", str(threads))
    results = job(body, 2, env=ENV, timeout=90).check(2)
    assert all(result["sum"] == 2 for result in results.values())


# As a script for Horovod is written: the model, the training operation, then the broadcast.
SESSION = """
v1 = tf.compat.v1
v1.disable_eager_execution()
values = np.random.default_rng(rank)
x, y = v1.placeholder(tf.float32, [None, 3]), v1.placeholder(tf.float32, [None, 1])
w = v1.get_variable("w", [3, 1], initializer=v1.constant_initializer(float(rank + 1)))
b = v1.get_variable("b", [1], initializer=v1.constant_initializer(float(10 * rank)))
loss = tf.reduce_mean(tf.square(x @ w + b - y))
optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.1))
train = optimizer.minimize(loss)
mean_loss = hvd.allreduce(loss, name="loss")
"""

BROADCAST_LAST = """
start = hvd.broadcast_global_variables(0)
with v1.Session() as session:
    session.run(v1.global_variables_initializer())
    session.run(start)
    weights = session.run([w, b])
    assert (weights[0] == 1.0).all() and (weights[1] == 0.0).all(), weights
    for step in range(5):
        feed = {x: values.normal(size=(4, 3)), y: values.normal(size=(4, 1))}
        fetches = [train, mean_loss] if step % 2 else [train]
        session.run(fetches, feed)
    report(weights=[float(one) for one in np.concatenate(session.run([w, b]), axis=None)])
"""

MONITORED = """
with v1.train.MonitoredTrainingSession(hooks=[hvd.BroadcastGlobalVariablesHook(0)]) as session:
    weights = session.run([w, b])
    assert (weights[0] == 1.0).all() and (weights[1] == 0.0).all(), weights
    for step in range(5):
        session.run(train, {x: values.normal(size=(4, 3)), y: values.normal(size=(4, 1))})
    report(weights=[float(one) for one in np.concatenate(session.run([w, b]), axis=None)])
"""


@pytest.mark.parametrize("way", ["broadcast last", "hook"])
def test_a_session_whose_broadcast_was_built_last(job, way):
    """It runs before the first step, without what the training graph's placeholders need."""
    body = SESSION + {"broadcast last": BROADCAST_LAST, "hook": MONITORED}[way]
    results = job(body, 2, env=ENV, timeout=90).check(2)
    assert results[0]["weights"] == results[1]["weights"]
    # Five steps whose sums are rounded to float32 (2^-24 of numbers below 10).
    assert np.abs(results[0]["weights"] - _trained_alone()).max() < 1e-5, results[0]


def _trained_alone() -> np.ndarray:
    """The weights that gradient descent on the data of both ranks gives, in float64."""
    values = [np.random.default_rng(rank) for rank in range(2)]
    w, b = np.ones([3, 1]), np.zeros(1)
    for _ in range(5):
        parts = [(one.normal(size=(4, 3)), one.normal(size=(4, 1))) for one in values]
        x, y = (np.concatenate(half) for half in zip(*parts, strict=True))
        error = x @ w + b - y
        w, b = w - 0.1 * 2 * x.T @ error / len(x), b - 0.1 * 2 * error.mean()
    return np.concatenate([w, b], axis=None)


FETCHES = """
v1 = tf.compat.v1
with tf.Graph().as_default():
    turn = v1.placeholder(tf.int32, [])
    sums = [
        hvd.allreduce(late(mine(10**i), (turn + i) % size == rank), op=hvd.Sum, NAMES)
        for i in range(5)
    ]
    config = v1.ConfigProto(inter_op_parallelism_threads=2)
    with v1.Session(config=config) as session:
        choices = np.random.default_rng(1)
        own = np.random.default_rng(rank)
        for step in range(40):
            chosen = choices.permutation(5)[: choices.integers(1, 6)]
            mixed = own.permutation(chosen)
            got = session.run([sums[i] for i in mixed], {turn: step})
            assert got == [10.0**i * total for i in mixed], (rank, step, list(mixed), got)
report(done=True)
"""


def test_a_session_fetches_any_subset_in_any_order(job):
    """Two threads run five collectives that are ready at once, in another order on each rank."""
    given, default = (FETCHES.replace("NAMES", one) for one in ('name=f"sum{i}"', "name=None"))
    job(LATE + given + default, 2, env=ENV, timeout=90).check(2)


OLD_LOOP = """
v1 = tf.compat.v1
v1.disable_control_flow_v2()
with tf.Graph().as_default():
    turn = v1.placeholder(tf.int32, [])
    def body(i, sums):
        x = tf.cast(i + 1, tf.float32) * (rank + 1.0)
        x = hvd.allreduce(late(x, (i + turn) % size == rank), op=hvd.Sum)
        return i + 1, sums.write(i, x)
    sums = tf.TensorArray(tf.float32, 4)
    before = hvd.allreduce(mine(10), op=hvd.Sum)
    _, sums = tf.while_loop(lambda i, _: i < 4, body, (0, sums), parallel_iterations=4)
    sums = sums.stack()
    after = hvd.allreduce(late(mine(100), turn % size != rank), op=hvd.Sum)
    with v1.Session() as session:
        for step in range(20):
            looped, first, last = session.run([sums, before, after], {turn: step})
            assert list(looped) == [total, 2 * total, 3 * total, 4 * total], (rank, step, looped)
            assert (first, last) == (10 * total, 100 * total), (rank, step, first, last)
report(done=True)
"""


def test_a_loop_of_a_session(job):
    """A while loop of TF1: its collective runs many times and counts its turns."""
    job(LATE + OLD_LOOP, 2, env=ENV, timeout=90).check(2)


NESTED_LOOPS = """
v1 = tf.compat.v1
v1.disable_control_flow_v2()
with tf.Graph().as_default():
    turn = v1.placeholder(tf.int32, [])
    def outer(i):
        def inner(j):
            x = tf.cast(4 * i + j + 1, tf.float32) * (rank + 1.0)
            return hvd.allreduce(late(x, (i + j + turn) % size == rank), op=hvd.Sum)
        return tf.map_fn(inner, tf.range(4), fn_output_signature=tf.float32)
    rows = tf.map_fn(outer, tf.range(3), fn_output_signature=tf.float32)
    with v1.Session() as session:
        for step in range(10):
            got = session.run(rows, {turn: step})
            wanted = [[(4 * i + j + 1) * total for j in range(4)] for i in range(3)]
            assert got.tolist() == wanted, (rank, step, got)
report(done=True)
"""


def test_loops_of_a_session_inside_each_other(job):
    """Iterations of the inner loop run at the same time for several iterations of the outer one."""
    job(LATE + NESTED_LOOPS, 2, env=ENV, timeout=90).check(2)
