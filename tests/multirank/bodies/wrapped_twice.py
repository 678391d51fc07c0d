"""What ranks do in test_wrapped_twice.py."""

import keras_modes
import numpy as np
import tensorflow as tf
from checks import WAYS, equal, raises, total
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


def _of_a_session(script) -> np.ndarray:
    """How far a script of (optimizer, variable, loss) moves a variable, with op=Sum."""
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        # Of the gradients' shape, and no scalar.
        a = v1.get_variable("a", initializer=tf.ones([2]), use_resource=True)
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), op=hvd.Sum)
        steps = script(optimizer, a, tf.reduce_sum(a) * (rank + 1.0))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for step in steps:
                session.run(step)
            return 1.0 - session.run(a)


def _clipped(optimizer, a, loss):
    pairs = optimizer.compute_gradients(loss, [a])
    grads, norm = tf.clip_by_global_norm([grad for grad, _ in pairs], 1e9)
    return [optimizer.apply_gradients([(tf.where(norm > 0, grads[0], grads[0] * 2), a)])]


def _added_up(optimizer, a, loss):
    """In a variable, and applied by another call of the session."""
    grad = optimizer.compute_gradients(loss, [a])[0][0]
    sums = tf.compat.v1.get_variable("sums", initializer=tf.zeros([2]), use_resource=True)
    return [sums.assign_add(grad), optimizer.apply_gradients([(sums.read_value(), a)])]


def _looked_at(optimizer, a, loss):
    """What is applied are the script's own."""
    seen = optimizer.compute_gradients(loss, [a])[0][0]
    own = tf.gradients(loss, a)[0] / tf.maximum(tf.norm(seen), 1e9) * 1e9
    return [optimizer.apply_gradients([(own, a)])]


def _twice(optimizer, a, loss):
    pairs = [optimizer.compute_gradients(loss / 2, [a]) for _ in range(2)]
    return [optimizer.apply_gradients(one) for one in pairs]


def _in_a_branch(optimizer, a, loss):
    pairs = [(grad * 1.0, one) for grad, one in optimizer.compute_gradients(loss, [a])]
    apply = lambda: tf.group(optimizer.apply_gradients(pairs))  # noqa: E731
    return [tf.cond(tf.reduce_sum(a) > 0, apply, tf.no_op)]


def sums_of_tf1_optimizers():
    """Each gradient is summed once, however a script comes from computing to applying."""
    tf.compat.v1.enable_control_flow_v2()
    for script in (_clipped, _added_up, _looked_at, _twice, _in_a_branch):
        equal(_of_a_session(script), total, script.__name__)

    # In eager execution nothing tells what a gradient was made of.
    a = tf.Variable(tf.ones([2]))
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Sum)
    optimizer.apply_gradients([(tf.ones([2]) * (rank + 1.0), a)])
    equal(1.0 - a, total)
    pairs = optimizer.compute_gradients(lambda: tf.reduce_sum(a) * (rank + 1.0), [a])
    optimizer.apply_gradients(pairs)
    equal(1.0 - a, 2 * total)
    with raises(RuntimeError, "in eager execution nothing tells"):
        optimizer.apply_gradients([(pairs[0][0] * 1.0, a)])
    report()


def clipped_sums_of_a_tape():
    """In a function they are known to be reduced, also by a Keras optimizer that is wrapped too."""
    a = tf.Variable(tf.ones([2]))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
    getattr(optimizer, "build", lambda _: None)([a])

    @tf.function
    def step():
        with hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum) as tape:
            loss = tf.reduce_sum(a) * (rank + 1.0)
        grads, _ = tf.clip_by_global_norm(tape.gradient(loss, [a]), 1e9)
        optimizer.apply_gradients(zip(grads, [a], strict=True))

    step()
    equal(1.0 - a, total)
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
