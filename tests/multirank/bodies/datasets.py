"""What ranks do in test_datasets.py."""

import os
import time

import tensorflow as tf
from checks import raises
from harness import rank, report, size

import smddp_tf as hvd
from bodies.order import late

STEPS = 30
total = size * (size + 1) // 2


def _sum(i):
    """Reduces this rank's share of element i, on rank 1 later than on the others."""
    if rank == 1 and tf.executing_eagerly():
        time.sleep(0.002)
    return hvd.allreduce(tf.cast(i, tf.float32) * (rank + 1), op=hvd.Sum)


def _generate():
    for i in range(STEPS):
        yield _sum(i)


def _by_numpy_function(i):
    return tf.numpy_function(lambda i: _sum(i).numpy(), [i], tf.float32)


def _by_py_function(i):
    return tf.py_function(_sum, [i], tf.float32)


def _generated():
    spec = tf.TensorSpec([], tf.float32)
    return tf.data.Dataset.from_generator(_generate, output_signature=spec)


SEQUENTIAL = {
    "generator": _generated,
    "numpy_function": lambda: tf.data.Dataset.range(STEPS).map(_by_numpy_function),
    "py_function": lambda: tf.data.Dataset.range(STEPS).map(_by_py_function),
    "map": lambda: tf.data.Dataset.range(STEPS).map(_sum),
    "one call": lambda: tf.data.Dataset.range(STEPS).map(_sum, num_parallel_calls=1),
}


def beside_the_loop(kind):
    """The loop reduces while tf.data's threads do, for elements that are fetched ahead."""
    for i, element in enumerate(SEQUENTIAL[kind]().prefetch(3)):
        mine = hvd.allreduce(tf.constant(1000.0 + i), op=hvd.Sum)
        assert float(mine) == size * (1000.0 + i), (i, float(mine))
        assert float(element) == i * total, (i, float(element))
    report()


def function_beside_the_loop(compiled):
    """A function that a dataset calls, and one of the same name that the loop calls."""
    of_data = tf.function(_sum, jit_compile=compiled)
    of_loop = tf.function(_sum, jit_compile=compiled)
    for i, element in enumerate(tf.data.Dataset.range(STEPS).map(of_data).prefetch(3)):
        mine = of_loop(tf.constant(1000.0 + i))
        wanted = (1000.0 + i) * total, i * total
        assert (float(mine), float(element)) == wanted, (i, float(mine), float(element))
    report()


def two_lambdas():
    """TensorFlow names the functions of both datasets alike, and both are fetched ahead."""
    numbers = tf.data.Dataset.range(STEPS)
    for turn in range(3):
        at = turn % size == rank
        first = numbers.map(lambda i, at=at: _sum(late(tf.cast(i, tf.float32), at)))
        second = numbers.map(lambda i, at=at: _sum(1000.0 + late(tf.cast(i, tf.float32), not at)))
        both = zip(first.prefetch(4), second.prefetch(4), strict=True)
        got = [(float(one), float(two)) for one, two in both]
        assert got == [(i * total, (1000 + i) * total) for i in range(STEPS)], (rank, turn, got)
    report()


def in_parallel():
    """A function that has a collective, or calls one that has been traced before."""
    traced = tf.function(_sum)
    assert float(traced(tf.constant(1))) == total
    numbers = tf.data.Dataset.range(STEPS).map(lambda i: tf.cast(i, tf.int32))
    for function in (_sum, lambda i: traced(i)):
        for calls in (4, tf.data.AUTOTUNE):
            with raises(ValueError, "a collective is inside", "leave num_parallel_calls out"):
                numbers.map(function, num_parallel_calls=calls)
        with raises(ValueError, "a collective is inside", "interleave(num_parallel_calls"):
            numbers.interleave(
                lambda i, function=function: tf.data.Dataset.from_tensors(function(i)),
                cycle_length=2,
                num_parallel_calls=2,
            )
    inner = tf.data.Dataset.range(2)
    with raises(ValueError, "a collective is inside"):
        inner.flat_map(lambda _: numbers.map(traced, num_parallel_calls=2))
    assert list(numbers.map(lambda i: i + 1, num_parallel_calls=4))[1] == 2
    hvd.barrier()
    report()


def python_in_parallel():
    """Python code that tf.data runs for several elements at once, as if in one thread."""
    try:
        for _ in tf.data.Dataset.range(STEPS).map(_by_py_function, num_parallel_calls=4):
            continue
    except tf.errors.OpError as error:
        report(text=error.message)
        hvd.shutdown()  # which says what has failed
        time.sleep(1)  # let the other say it too before mpirun ends the job
        # After an error in one of several py_functions TensorFlow hangs where the interpreter ends
        # (72 of 74 runs without this library).
        os._exit(1)
