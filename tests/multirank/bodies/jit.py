"""What ranks do in test_jit.py."""

import os
import threading
import time

import numpy as np
import tensorflow as tf
from checks import DTYPES, checked, equal, raises, total
from harness import rank, report, size

import smddp_tf as hvd
import smddp_tf.keras as hvd_keras
from smddp_tf._src.graph import library

keras = tf.keras
# Which TensorFlow has typed calls.
TYPED = [int(n) for n in tf.__version__.split(".")[:2]] >= [2, 18]


@tf.function(jit_compile=True)
def _mean(x):
    return hvd.allreduce(x)


def _raised(call, *words):
    try:
        call()
    except tf.errors.OpError as error:
        for word in words:
            assert word in error.message, (word, error.message)
        return type(error).__name__
    raise SystemExit(f"no error: {words}")


def classes_of_failures():
    kind = library.xla_call_kind()
    found = {"mismatch": _raised(lambda: _mean(tf.ones([2 + rank])), "Mismatched", "[2]", "[3]")}
    equal(_mean(tf.constant(rank + 1.0)), total / size, "the job goes on")
    if rank == 1:
        time.sleep(5)
    words = "SMDDP_TIMEOUT_SECONDS" if rank == 0 else ""
    found["late"] = _raised(lambda: _mean(tf.constant(1.0)), words)
    hvd.shutdown()
    hvd.init()
    equal(_mean(tf.constant(rank + 1.0)), total / size, "connected anew")
    if rank == 0:
        found["left"] = _raised(lambda: _mean(tf.constant(1.0)), "rank 1")
    report(kind=kind, found=found, typed=TYPED)


def _each(dtype):
    name = 'strange "näme" \\ ; = %25, {x} \n'
    x = tf.cast(tf.fill([2, 3], rank), dtype)
    moved = hvd.allgather(x), hvd.broadcast(x, size - 1), hvd.alltoall(tf.tile(x, [size, 1]))
    if dtype in DTYPES:
        moved += (hvd.allreduce(x, op=hvd.Sum, name=name, postscale_factor=2.0),)
    return moved


def _check_what_is_carried():
    for dtype in [*DTYPES, tf.bool, tf.int16, tf.uint16]:
        ranks = np.arange(size).astype(dtype.as_numpy_dtype)  # as bool: False, True, True
        got = tf.function(_each, jit_compile=True)(dtype)
        equal(got[0], np.repeat(ranks, 2)[:, None], dtype)
        equal(got[1], ranks[-1], dtype)
        equal(got[2], np.repeat(ranks, 2)[:, None], dtype)
        if dtype in DTYPES:
            equal(got[3], size * (size - 1), dtype)

    @tf.function(jit_compile=True)
    def scaled():
        x = tf.constant([1.0, 2.0], tf.float64)
        return hvd.allreduce(x, op=hvd.Sum, prescale_factor=1e-5, postscale_factor=3.0)

    equal(scaled(), np.array([1.0, 2.0]) * size * (1e-5 * 3.0))


def what_calls_carry():
    assert library.xla_call_kind() == ("typed" if TYPED else "legacy")
    _check_what_is_carried()
    if TYPED:
        os.environ["SMDDP_TEST_XLA_CALL"] = ("typed", "legacy")[rank % 2]
        _check_what_is_carried()
        del os.environ["SMDDP_TEST_XLA_CALL"]

    @tf.function
    def of_unknown_shape(x):
        return tf.function(hvd.allreduce, jit_compile=True)(tf.boolean_mask(x, x > 0))

    with raises(tf.errors.UnimplementedError, "shape", "jit_compile=False"):
        of_unknown_shape(tf.constant([1.0, -1.0]))
    report(checks=checked())


def _weights(jit, optimizer, x, y, batch):
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3)])
    model.build((None, 6))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=jit)
    model.fit(x, y, batch_size=batch, epochs=2, shuffle=False, verbose=0)
    return np.concatenate([v.ravel() for v in model.get_weights()])


def keras_fit():
    data = np.random.default_rng(3)
    x_all = data.normal(size=(96, 6)).astype("float32")
    y_all = data.integers(0, 3, size=96)
    # Of every batch of 12 a rank has each second sample.
    alone = _weights(False, keras.optimizers.SGD(0.1, momentum=0.9), x_all, y_all, 12)
    optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    got = _weights(True, optimizer, x_all[rank::size], y_all[rank::size], 12 // size)
    low, high = (hvd.allreduce(got, op=op).numpy() for op in (hvd.Min, hvd.Max))
    assert np.array_equal(low, high)
    report(worst=float(np.abs(got - alone).max()))


def row_major():
    """XLA chooses how tensors lie in memory, on a GPU otherwise, unless a call says it."""
    x = tf.reshape(tf.range(6.0) * (rank + 1.0), [2, 3])

    @tf.function(jit_compile=True)
    def turned(x):
        scalar = hvd.allreduce(tf.reduce_sum(x), op=hvd.Sum)
        rows = hvd.allgather(tf.transpose(x))
        return hvd.allreduce(tf.transpose(x), op=hvd.Sum), scalar, rows

    summed, scalar, rows = turned(x)
    want = np.arange(6.0).reshape(2, 3).T
    equal(summed, want * total)
    equal(scalar, 15 * total)
    equal(rows, np.concatenate([want * (r + 1) for r in range(size)]))
    program = turned.experimental_get_compiler_ir(x)("hlo")
    calls = program.count('custom_call_target="smddp_collective"')
    assert calls == program.count("operand_layout_constraints={f32") == 3, program
    report(done=True)


def one_variable():
    """What orders compiled calls is one variable, in all threads and by all names of a device."""
    x = tf.constant([rank + 1.0, 2.0])
    together = threading.Barrier(4)
    functions = []

    def sums(x):
        for i in range(4):
            x = hvd.allreduce(x, op=hvd.Sum, name=f"sum{i}")
        return x

    def trace():
        function = tf.function(sums, jit_compile=True)
        together.wait(30)
        functions.append(function.get_concrete_function(x))

    threads = [threading.Thread(target=trace, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    with tf.device("/cpu:0"):
        elsewhere = tf.function(sums, jit_compile=True).get_concrete_function(x)
    functions.append(tf.function(lambda x: sums(x) + elsewhere(x), jit_compile=True))
    for i, function in enumerate(functions):
        want = np.array([total, 2 * size]) * size**3
        equal(function(x), want * (2 if i == 4 else 1))
    report(checks=checked())


def conditions_of_loops():
    """Several collectives in a compiled loop's condition, and some in its body."""

    @tf.function(jit_compile=True)
    def doubled(x):
        def condition(x, _):
            low, high = hvd.allreduce(x[0], op=hvd.Min), hvd.allreduce(x[1], op=hvd.Max)
            return tf.logical_and(low < 20.0 * size, hvd.allreduce(high, op=hvd.Sum) < 1e6)

        def body(x, turns):
            return hvd.allreduce(x, op=hvd.Sum), turns + hvd.allreduce(1, op=hvd.Sum)

        before = hvd.allreduce(x, op=hvd.Sum)
        x, turns = tf.while_loop(condition, body, (x, 0))
        return before, x, turns, hvd.allreduce(x, op=hvd.Sum)

    x = np.array([total, 2.0 * size])
    for _ in range(5):
        before, last, turns, after = doubled(tf.constant([rank + 1.0, 2.0]))
        want, count = x, 1
        while want[0] < 20 * size:
            want, count = want * size, count + 1
        equal(before, x)
        equal(last, want)
        equal(turns, count * size)
        equal(after, want * size)

    @tf.function(jit_compile=True)
    def nested(x):
        within = tf.function(lambda x: hvd.allreduce(x) < 5.0)
        return tf.while_loop(lambda x: within(x), lambda x: x + 1.0, [x])

    with raises(tf.errors.UnimplementedError, "in the loop's body", "loop variable"):
        nested(1.0)

    @tf.function(jit_compile=True)
    def scaled(x, limit):
        sums = hvd.grouped_allreduce([x, 2 * x[:2]], op=hvd.Sum)
        fits = tf.reduce_all([tf.reduce_max(one) < limit for one in sums])
        return tf.cond(fits, lambda: sums[0], lambda: sums[0] / 4)

    x = tf.constant([1.0, 2.0, 3.0]) * (rank + 1.0)
    for limit, factor in ((1e6, 1), (1.0, 0.25)):
        equal(scaled(x, limit), np.array([1, 2, 3]) * total * factor)
    report(checks=checked())
