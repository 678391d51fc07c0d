"""What ranks do in test_order_by_name.py."""

import threading
import warnings

import numpy as np
import tensorflow as tf
from harness import rank, report, size
from operators import meet_types

import smddp_tf as hvd
from bodies.order import CALLS, late, mine, total

v1 = tf.compat.v1


def _called(number, **options):
    @tf.function(**options)
    def call(turn):
        x = late(mine(number + 1), (turn + number) % size == rank)
        first = hvd.allreduce(x, op=hvd.Sum, name=f"first{number}")
        return first + 100.0 * hvd.allreduce(mine(number + 1), op=hvd.Sum, name=f"second{number}")

    return call


def _in_threads(body, count, started_alike=False):
    """Runs body(number) in threads. Ranks start them in different orders, if not alike."""
    meet_types()
    started = [threading.Thread(target=body, args=[i], daemon=True) for i in range(count)]
    for one in started[:: 1 if rank == 0 or started_alike else -1]:
        one.start()
    for one in started:
        one.join(60)
    assert not any(one.is_alive() for one in started), "a thread still waits"


def functions_of_threads(threads, inter_op, compiled=False):
    """inter_op: how many threads TensorFlow has to run operations; 0 for as many as it likes."""
    if inter_op:
        tf.config.threading.set_inter_op_parallelism_threads(inter_op)
    wrong = []

    def thread(number):
        call, wanted = _called(number, jit_compile=compiled), (number + 1) * total * 101.0
        for turn in range(CALLS):
            try:
                got = float(call(tf.constant(turn)))
            except tf.errors.OpError as error:
                wrong.append(error.message[-400:])
                return
            if got != wanted:
                wrong.append((number, turn, got, wanted))

    _in_threads(thread, threads)
    assert not wrong, f"rank {rank}: {wrong[0]}"
    report(sum=float(hvd.allreduce(1.0, op=hvd.Sum)))


def _train_by_tape(weight, slowly, steps):
    variable = tf.Variable(0.0)

    @tf.function
    def step(turn):
        with tf.GradientTape() as tape:
            loss = variable * late(mine(weight), turn % size == (rank if slowly else 0))
        grad = hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(loss, variable)
        variable.assign_add(grad)

    for turn in range(steps):
        step(tf.constant(turn))
    assert float(variable) == steps * weight * total, (rank, weight, float(variable))


def tapes_of_named_threads():
    """Functions and tapes of two threads are called alike, and the threads are not."""
    failed = []

    def train(weight, slowly):
        try:
            _train_by_tape(weight, slowly, 3 * CALLS)
        except (AssertionError, tf.errors.OpError) as error:
            failed.append(str(error))

    meet_types()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        threads = [
            threading.Thread(target=train, args=args, name=name, daemon=True)
            for name, args in (("student", (1.0, rank == 0)), ("teacher", (100.0, rank != 0)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not failed, failed
    assert not any(thread.is_alive() for thread in threads), "a thread still waits"
    report(done=True)


def unnamed_threads():
    """What the second of two threads that have the same default names is told.

    They take turns, which the library does not know.
    """
    turns = [threading.Event() for _ in range(3)]
    turns[0].set()

    def work(number):
        turns[number].wait(30)
        hvd.allreduce(mine(1))
        turns[number + 1].set()
        turns[2].wait(30)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        _in_threads(work, 2, started_alike=True)
    report(warned=[str(one.message) for one in warned])


class _Training:
    """As a script for Horovod is written: the model, the training operation, then the broadcast."""

    def __init__(self):
        v1.disable_eager_execution()
        self.values = np.random.default_rng(rank)
        self.x = v1.placeholder(tf.float32, [None, 3])
        self.y = v1.placeholder(tf.float32, [None, 1])
        initial = v1.constant_initializer
        self.w = v1.get_variable("w", [3, 1], initializer=initial(float(rank + 1)))
        self.b = v1.get_variable("b", [1], initializer=initial(float(10 * rank)))
        loss = tf.reduce_mean(tf.square(self.x @ self.w + self.b - self.y))
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.1))
        self.train = optimizer.minimize(loss)
        self.mean_loss = hvd.allreduce(loss, name="loss")

    def feed(self):
        x, y = self.values.normal(size=(4, 3)), self.values.normal(size=(4, 1))
        return {self.x: x, self.y: y}

    def check_start(self, session):
        weights = session.run([self.w, self.b])
        assert (weights[0] == 1.0).all() and (weights[1] == 0.0).all(), weights

    def report(self, session):
        weights = np.concatenate(session.run([self.w, self.b]), axis=None)
        report(weights=[float(one) for one in weights])


def session_with_the_broadcast_last():
    training = _Training()
    start = hvd.broadcast_global_variables(0)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run(start)
        training.check_start(session)
        for step in range(5):
            fetches = [training.train, training.mean_loss] if step % 2 else [training.train]
            session.run(fetches, training.feed())
        training.report(session)


def session_with_a_hook():
    training = _Training()
    hooks = [hvd.BroadcastGlobalVariablesHook(0)]
    with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
        training.check_start(session)
        for _ in range(5):
            session.run(training.train, training.feed())
        training.report(session)


def _fetch_subsets(name_of):
    """Runs five collectives that are ready at once, in a session of two threads."""
    with tf.Graph().as_default():
        turn = v1.placeholder(tf.int32, [])
        sums = [
            hvd.allreduce(late(mine(10**i), (turn + i) % size == rank), op=hvd.Sum, name=name_of(i))
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


def session_fetches_any_subset():
    _fetch_subsets(lambda i: f"sum{i}")
    _fetch_subsets(lambda i: None)
    report(done=True)


def old_loop():
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
                assert list(looped) == [i * total for i in (1, 2, 3, 4)], (rank, step, looped)
                assert (first, last) == (10 * total, 100 * total), (rank, step, first, last)
    report(done=True)


def nested_loops():
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


def _optimize_nothing(config):
    """TensorFlow then runs functions as they are instead of inlining them."""
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = v1.OptimizerOptions.L0


def function_called_several_times(way):
    """Three calls of one function in a step, with a gradient: nothing orders them.

    way: how TensorFlow runs the calls.
    """
    decorate = {
        "jit": tf.function(jit_compile=True),
        "not inlined": tf.function(experimental_attributes={"_noinline": True}),
    }.get(way, tf.function)
    config = v1.ConfigProto()
    if way == "not optimized":
        _optimize_nothing(config)
    if way == "jit":  # a waiting collective blocks a thread there
        config.inter_op_parallelism_threads = 6
    with tf.Graph().as_default():
        turn = v1.placeholder(tf.int32, [])

        @decorate
        def f(x):
            return hvd.allreduce(hvd.allreduce(x, op=hvd.Sum) ** 2.0, op=hvd.Sum)

        inputs = [late(mine(10**i), (i + turn) % size == rank) for i in range(3)]
        sums = [f(x) for x in inputs]
        grads = [v1.gradients(total, x)[0] for total, x in zip(sums, inputs, strict=True)]
        with v1.Session(config=config) as session:
            for step in range(20):
                got, slopes = session.run([sums, grads], {turn: step})
                assert got == [size * (10.0**i * total) ** 2 for i in range(3)], (rank, step, got)
                # A sum's gradient is the sum of the ranks' gradients.
                wanted = [2.0 * 10.0**i * total * size**2 for i in range(3)]
                assert slopes == wanted, (rank, step, slopes, wanted)
    report(done=True)


def nested_functions_called_twice():
    """Both calls of the outer function call the inner one twice, once in a loop."""
    with tf.Graph().as_default():
        turn = v1.placeholder(tf.int32, [])

        @tf.function
        def inner(x, i):
            return hvd.allreduce(late(x, (i + turn) % size == rank), op=hvd.Sum)

        @tf.function
        def outer(x):
            first, looped = inner(x, 0), tf.zeros([])
            for i in tf.range(3):
                looped += inner(x + tf.cast(i, tf.float32) * (rank + 1.0), i)
            return first, looped

        sums = [outer(mine(10**i)) for i in range(2)]
        for optimized in (True, False):
            config = v1.ConfigProto()
            if not optimized:
                _optimize_nothing(config)
            with v1.Session(config=config) as session:
                for step in range(15):
                    got = session.run(sums, {turn: step})
                    wanted = [(10.0**i * total, (3 * 10.0**i + 3) * total) for i in range(2)]
                    assert got == wanted, (rank, step, optimized, got)
    report(done=True)


def function_called_in_loop(way):
    """TensorFlow runs it as it is, so it does not see in which iteration it runs."""
    if way == "TF1's loop":
        v1.disable_control_flow_v2()
    with tf.Graph().as_default():
        turn = v1.placeholder(tf.int32, [])

        @tf.function(jit_compile=way.endswith("jit"))
        def f(x):
            return hvd.allreduce(x, op=hvd.Sum)

        def body(i):
            return f(late(tf.cast(i + 1, tf.float32) * (rank + 1.0), (i + turn) % size == rank))

        rows = tf.map_fn(body, tf.range(4), fn_output_signature=tf.float32)
        config = v1.ConfigProto(inter_op_parallelism_threads=8)
        _optimize_nothing(config)
        with v1.Session(config=config) as session:
            for step in range(15):
                got = session.run(rows, {turn: step})
                assert list(got) == [i * total for i in (1, 2, 3, 4)], (rank, step, got)
    report(done=True)


def functions_traced_before(threads, inter_op):
    """Functions that the main thread has called once are called by several threads."""
    tf.config.threading.set_inter_op_parallelism_threads(inter_op)
    calls = [_called(number) for number in range(threads)]
    for call in calls:
        call(tf.constant(0))
    wrong = []

    def thread(number):
        wanted = (number + 1) * total * 101.0
        for turn in range(CALLS):
            got = float(calls[number](tf.constant(turn)))
            if got != wanted:
                wrong.append((number, turn, got, wanted))

    _in_threads(thread, threads)
    assert not wrong, f"rank {rank}: {wrong[0]}"
    report(done=True)


def wrapped_function():
    """TensorFlow keeps no order in it. The names that it is given are alike."""

    def both(turn):
        at = turn % size == rank
        first = hvd.allreduce(late(mine(1), at), op=hvd.Sum, name="sum")
        return first, hvd.allreduce(late(mine(100), turn % size != rank), op=hvd.Sum, name="sum")

    both = v1.wrap_function(both, [tf.TensorSpec([], tf.int32)])
    for turn in range(CALLS):
        got = [float(one) for one in both(tf.constant(turn))]
        assert got == [total, 100 * total], (rank, turn, got)
    report(done=True)
