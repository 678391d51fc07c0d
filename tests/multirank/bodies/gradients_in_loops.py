"""What ranks do in test_gradients_in_loops.py: gradients through collectives in loops and branches.

A sum's gradient is the sum of the ranks' gradients, and those of the ranks differ. Other ranks are
late at other places of the backward pass, so what is not ordered there meets the wrong collective.
"""

import tensorflow as tf
from harness import rank, report, size

import smddp_tf as hvd
from bodies.order import total

CALLS = 6


@tf.custom_gradient
def _late_back(x):
    """X, whose gradient comes after a while of computing; TensorFlow allows no loop there."""

    def gradient(upstream):
        y = tf.fill([1 << 16], tf.sigmoid(upstream))
        for _ in range(20):
            y = tf.tanh(y)
        return upstream + tf.minimum(tf.reduce_max(tf.abs(y)), 0.0)

    return tf.identity(x), gradient


def _sum(x, is_late):
    return hvd.allreduce(_late_back(x) if is_late else x, op=hvd.Sum)


# Each returns a number that is its factor times the sum of x over the ranks.
def _cond(x, turn, is_late):
    return tf.cond(turn % 2 == 0, lambda: _sum(2.0 * x, is_late), lambda: 2.0 * _sum(x, is_late))


def _case(x, turn, is_late):
    return tf.switch_case(turn % 3, [lambda: _sum(3.0 * x, is_late)] * 3)


def _while(x, turn, is_late):
    def body(i, y):
        return i + 1, y + _sum(x * tf.cast(i, tf.float32), is_late)

    return tf.while_loop(lambda i, _: i < 4, body, (1, 0.0), maximum_iterations=3)[1]


def _range(x, turn, is_late):
    y = 0.0
    for i in tf.range(4):
        y += _sum(x * tf.cast(i, tf.float32), is_late)
    return y


def _map(x, turn, is_late):
    ones = tf.constant([1.0, 2.0, 4.0])
    return tf.reduce_sum(tf.map_fn(lambda one: _sum(one * x, is_late), ones))


def _scan(x, turn, is_late):
    ones = tf.constant([1.0, 2.0, 4.0])
    return tf.scan(lambda y, one: y + _sum(one * x, is_late), ones, initializer=0.0)[-1]


def _cond_in_loop(x, turn, is_late):
    y = 0.0
    for i in tf.range(4):
        if i != 2:
            y += _sum(x * tf.cast(i, tf.float32), is_late)
    return y


def _loop_in_cond_in_loop(x, turn, is_late):
    y = 0.0
    for i in tf.range(3):
        if i > 0:
            for _ in tf.range(3):
                y += _sum(x, is_late)
    return y


def _function_in_loop(x, turn, is_late):
    @tf.function
    def inner(x):
        return tf.cond(turn >= 0, lambda: _sum(x, is_late), lambda: 0.0)

    y = 0.0
    for _ in tf.range(3):
        y += inner(x)
    return y


FORMS = {
    "cond": (_cond, 2),
    "case": (_case, 3),
    "while": (_while, 6),
    "range": (_range, 6),
    "map_fn": (_map, 7),
    "scan": (_scan, 7),
    "cond in loop": (_cond_in_loop, 4),
    "loop in cond in loop": (_loop_in_cond_in_loop, 6),
    "function in loop": (_function_in_loop, 3),
}


def _check(form, jit):
    build, factor = FORMS[form]

    @tf.function(jit_compile=jit)
    def step(x, turn):
        with tf.GradientTape() as tape:
            tape.watch(x)
            first = build(x, turn, rank == 0)
            # The backward pass runs this one first.
            second = build(100.0 * x, turn, rank != 0)
            loss = (rank + 1.0) * first + 10.0 * (rank + 1.0) * second
        return first, second, tape.gradient(loss, x)

    for turn in range(CALLS):
        got = [float(one) for one in step(tf.constant(rank + 1.0), tf.constant(turn))]
        want = [factor * total, 100 * factor * total, 1001 * factor * total]
        assert got == want, (form, jit, rank, turn, got, want)


def through_forms(forms, jit=False):
    for form in forms or FORMS:
        _check(form, jit)
    report(done=True)


def _function(x, turn, is_late):
    @tf.function
    def inner(x):
        return _sum(x, is_late)

    return inner(x) + inner(2.0 * x)


def _function_in_function(x, turn, is_late):
    @tf.function
    def outer(x):
        return _function(x, turn, is_late)

    return outer(x)


def _wrapped(x, turn, is_late):
    """In such a function TensorFlow orders nothing."""

    def two(x):
        return _sum(x, True) + _sum(2.0 * x, False)

    return tf.compat.v1.wrap_function(two, [tf.TensorSpec([], tf.float32)])(x)


def _many_in_cond(x, turn, is_late):
    """More collectives than TensorFlow has threads, none of which needs another's result."""

    def many():
        return tf.add_n([_sum(float(i) * x, i % 2 == 0) for i in range(1, 9)])

    return tf.cond(turn >= 0, many, lambda: 0.0)


SECOND = {
    **FORMS,
    "function": (_function, 3),
    "function in function": (_function_in_function, 3),
    "wrap_function": (_wrapped, 3),
    "many in cond": (_many_in_cond, 36),
}


def second_derivatives(forms):
    """Of a sum of squares. The gradient of a gradient calls functions that the gradient called."""
    for form in forms or SECOND:
        build, factor = SECOND[form]

        @tf.function
        def step(x, turn, build=build):
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    first = build(x * x, turn, rank == 0)
                    second = build(10.0 * x * x, turn, rank != 0)
                    y = first + second
                gradient = inner.gradient(y, x)
            return y, gradient, outer.gradient(gradient, x)

        squares = sum((one + 1) ** 2 for one in range(size))
        for turn in range(CALLS):
            got = [float(one) for one in step(tf.constant(rank + 1.0), tf.constant(turn))]
            times = 11 * factor
            want = [times * squares, times * size * 2 * (rank + 1), times * size * 2]
            assert got == want, (form, rank, turn, got, want)
    report(done=True)


def of_a_tape_in_a_loop(jit=False):
    """A gradient of what a DistributedGradientTape gives in a loop (a second derivative)."""
    variable = tf.Variable(3.0)

    @tf.function(jit_compile=jit)
    def step():
        with tf.GradientTape() as outer:
            y = 0.0
            for _ in tf.range(2):
                with tf.GradientTape() as inner:
                    loss = (rank + 1.0) * variable**3
                inner = hvd.DistributedGradientTape(inner, op=hvd.Sum)
                y += inner.gradient(loss, variable)
        return y, outer.gradient(y, variable)

    first, second = step()
    # The sum of (rank + 1) 3 v^2, twice; and each rank's (rank + 1) 6 v times as many upstreams.
    assert float(first) == 2 * total * 27.0, (first, total)
    assert float(second) == 2 * size * (rank + 1) * 18.0, (second, rank)
    report(done=True)
