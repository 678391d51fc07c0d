"""What ranks do in test_wrapped_twice.py."""

import keras_modes
import tensorflow as tf
from checks import WAYS, equal, total
from harness import rank, report, size

import smddp_tf.keras as hvd

keras = tf.keras


def _variables():
    return tf.Variable([[1.0, 2.0]] * 3), tf.Variable([5.0]), tf.Variable([0.0])


def _moved(optimizer, way, op=hvd.Sum, clip=False):
    """What one step of a distributed tape and a distributed optimizer subtracts, at a rate of 1."""
    hvd.DistributedOptimizer(optimizer, op=op)
    table, dense, own = variables = _variables()

    def step():
        with tf.GradientTape() as tape:
            rows = tf.gather(table, [0, 0, rank % 3])
            loss = tf.reduce_sum(rows) + tf.reduce_sum((dense + own) * (rank + 1.0))
        tape = hvd.DistributedGradientTape(tape, op=op)
        tape.register_local_source(own)
        grads = tape.gradient(loss, variables)
        if clip:
            grads = [grads[0], 1.0 * grads[1], grads[2]]  # another tensor, of the same value
        optimizer.apply_gradients(zip(grads, variables, strict=True))

    before = [tf.identity(variable) for variable in variables]
    WAYS[way](step)()
    return [old - new for old, new in zip(before, variables, strict=True)]


def _kinds():
    kinds = [keras.optimizers.SGD, tf.compat.v1.train.GradientDescentOptimizer]
    return kinds if keras_modes.KERAS3 else [*kinds, keras.optimizers.legacy.SGD]


def each_gradient_is_reduced_once():
    """Dense, sparse and local gradients, of all kinds of optimizers, for sums too."""
    own = (rank + 1.0) / size
    for kind in _kinds():
        ways = ["eager"] if "v1" in kind.__module__ + kind.__qualname__ else ["eager", "function"]
        for way in ways:
            table, dense, local = _moved(kind(1.0), way)
            equal(tf.reduce_sum(table), 6 * size, kind, way)
            equal(dense, total, kind, way)
            equal(local, own, kind, way)
            # What was computed from a reduced gradient is averaged again, which changes nothing.
            _, dense, local = _moved(kind(1.0), way, op=hvd.Average, clip=True)
            equal(dense, total / size, kind, way)
            equal(local, own, kind, way)
    report()


def gradients_of_one_optimizer_in_two_calls():
    """Both are computed, which reduces them, before either is applied."""
    with tf.Graph().as_default():
        a, b = tf.compat.v1.Variable([1.0]), tf.compat.v1.Variable([1.0])
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(1.0)
        hvd.DistributedOptimizer(optimizer, op=hvd.Sum)
        first = optimizer.compute_gradients(a * (rank + 1.0), [a])
        second = optimizer.compute_gradients(b * (rank + 1.0), [b])
        done = [optimizer.apply_gradients(pairs) for pairs in (first, second)]
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(done)
            values = session.run([a, b])
    for value in values:
        equal(value, 1.0 - total)
    report()
