"""What ranks do in test_order.py: kinds of graphs, whose order TensorFlow itself does not keep.

Each kind is a function that makes a `step(turn)`. In every turn other ranks are late.
"""

import numpy as np
import tensorflow as tf
from harness import rank, report, size

import smddp_tf as hvd

keras = tf.keras
CALLS = 20
total = size * (size + 1) / 2


def late(x, when):
    """X, after a while of computing where `when` is true."""
    rounds = tf.where(when, 150, 0)
    _, y = tf.while_loop(
        lambda i, _: i < rounds,
        lambda i, y: (i + 1, tf.tanh(y)),
        (0, tf.fill([4096], 0.5)),
    )
    return x + tf.minimum(tf.reduce_max(tf.abs(y)), 0.0)


def mine(x):
    return tf.constant(float(x)) * (rank + 1.0)


def _run(step, wanted, kind):
    """Calls step(turn) and compares its results with the sums over the ranks."""
    wrong = []
    for turn in range(CALLS):
        got = [float(one) for one in step(tf.constant(turn))]
        if got != [one * total for one in wanted]:
            wrong.append(got)
    assert not wrong, f"{kind}, rank {rank}: {len(wrong)} of {CALLS} calls are wrong: {wrong[0]}"


def _reduce_plainly(x, variable):
    return hvd.allreduce(x, op=hvd.Sum)


def _reduce_by_tape(x, variable):
    with tf.GradientTape() as tape:
        loss = variable * x
    return hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(loss, variable)


def _nested(reduce, **options):
    one, two = tf.Variable(1.0), tf.Variable(1.0)

    @tf.function(**options)
    def first(turn):
        one.assign_add(1.0)
        return reduce(late(mine(1), turn % size == rank), one)

    @tf.function(**options)
    def second(turn):
        two.assign_add(1.0)
        return reduce(late(mine(100), turn % size != rank), two)

    @tf.function
    def step(turn):
        return first(turn), second(turn)

    return step


# A loop or branch that uses a variable is not in TensorFlow's own order of stateful operations.
def _loop_then_another():
    variable = tf.Variable(1.0)

    @tf.function
    def step(turn):
        def body(i, sum):
            x = late(mine(1), turn % size == rank) * variable
            return i + 1, sum + hvd.allreduce(x, op=hvd.Sum)

        _, looped = tf.while_loop(lambda i, _: i < 3, body, (0, 0.0))
        return looped, hvd.allreduce(late(mine(100), turn % size != rank), op=hvd.Sum)

    return step


def _parallel_iterations():
    variable = tf.Variable(1.0)

    @tf.function
    def step(turn):
        def body(i, sums):
            x = tf.cast(i + 1, tf.float32) * (rank + 1.0)
            x = hvd.allreduce(late(x, (i + turn) % size == rank) * variable, op=hvd.Sum)
            return i + 1, sums.write(i, x)

        sums = tf.TensorArray(tf.float32, 6)
        _, sums = tf.while_loop(lambda i, _: i < 6, body, (0, sums), parallel_iterations=6)
        return tf.unstack(sums.stack(), 6)

    return step


def _python_loop():
    variable = tf.Variable(1.0)

    @tf.function
    def step(turn):
        looped = 0.0
        for i in tf.range(3):
            if i != 1:
                variable.assign(1.0)
                looped += hvd.allreduce(late(mine(1), turn % size == rank), op=hvd.Sum)
        return looped, hvd.allreduce(late(mine(100), turn % size != rank), op=hvd.Sum)

    return step


def _branches():
    variable = tf.Variable(1.0)

    @tf.function
    def step(turn):
        at = turn % size == rank

        def inside(x):
            return lambda: hvd.allreduce(late(mine(x) * variable, at), op=hvd.Sum)

        first = tf.cond(turn % 2 == 0, inside(1), inside(1))
        second = hvd.allreduce(late(mine(10), turn % size != rank), op=hvd.Sum)
        third = tf.switch_case(turn % 3, [inside(100), inside(100), inside(100)])
        mapped = tf.map_fn(
            lambda x: hvd.allreduce(late(x, at) * variable, op=hvd.Sum),
            tf.stack([mine(1000), mine(2000)]),
        )
        fourth = hvd.allreduce(late(mine(10000), turn % size != rank), op=hvd.Sum)
        return first, second, third, mapped[0], mapped[1], fourth

    return step


def _eager_and_graph():
    variable = tf.Variable(1.0)

    @tf.function
    def inner(turn):
        variable.assign(1.0)
        return hvd.allreduce(late(mine(1), turn % size == rank), op=hvd.Sum)

    @tf.function(jit_compile=True)
    def compiled(turn):
        return hvd.allreduce(late(mine(10), turn % size != rank) * variable, op=hvd.Sum)

    @tf.function
    def both(turn):
        return compiled(turn), inner(turn)

    def step(turn):
        first = hvd.allreduce(late(mine(100), turn % size == rank), op=hvd.Sum)
        return first, *both(turn), hvd.allreduce(mine(1000), op=hvd.Sum), inner(turn)

    return step


def _branches_in_jit():
    @tf.function(jit_compile=True)
    def step(turn):
        at = turn % size == rank

        def inside(x):
            return lambda: hvd.allreduce(late(mine(x), at), op=hvd.Sum)

        first = tf.cond(turn % 2 == 0, inside(1), inside(1))

        def body(i, sum):
            return i + 1, sum + hvd.allreduce(mine(10), op=hvd.Sum)

        _, looped = tf.while_loop(lambda i, _: i < 3, body, (0, 0.0))
        return first, looped, hvd.allreduce(late(mine(100), turn % size != rank), op=hvd.Sum)

    return step


# kind -> what makes its step, and the results before they are summed over the ranks
IN_GRAPHS = {
    "nested functions": (lambda: _nested(_reduce_plainly), (1, 100)),
    "nested jit": (lambda: _nested(_reduce_plainly, jit_compile=True), (1, 100)),
    "tape in nested functions": (lambda: _nested(_reduce_by_tape), (1, 100)),
    "tape in nested jit": (lambda: _nested(_reduce_by_tape, jit_compile=True), (1, 100)),
    "a loop, then another": (_loop_then_another, (3, 100)),
    "parallel iterations": (_parallel_iterations, (1, 2, 3, 4, 5, 6)),
    "a Python loop": (_python_loop, (2, 100)),
    "cond, case and map_fn": (_branches, (1, 10, 100, 1000, 2000, 10000)),
    "eager and graph": (_eager_and_graph, (100, 10, 1, 1000, 1)),
    "branches in jit": (_branches_in_jit, (1, 30, 100)),
}


def in_functions(kinds=None):
    """Runs these kinds, or all; reports how many calls of each were right."""
    kinds = kinds or list(IN_GRAPHS)
    for kind in kinds:
        make, wanted = IN_GRAPHS[kind]
        _run(make(), wanted, kind)
    report(**dict.fromkeys(kinds, CALLS))


def _networks():
    keras.utils.set_random_seed(3)
    generator = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
    discriminator = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    return generator, discriminator, keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1)


def _trainer(generator, discriminator, generator_optimizer, discriminator_optimizer, distribute):
    """The step of the tutorial "Deep Convolutional GAN", with a tf.function for each network."""
    cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)

    def apply(optimizer, tape, loss, variables):
        gradients = distribute(tape).gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    @tf.function
    def train_generator(noise, turn):
        with tf.GradientTape() as tape:
            fake = discriminator(generator(noise))
            loss = cross_entropy(tf.ones_like(fake), fake)
            loss = late(loss, turn % size == rank)
        apply(generator_optimizer, tape, loss, generator.trainable_variables)

    @tf.function
    def train_discriminator(noise, images, turn):
        with tf.GradientTape() as tape:
            real, fake = discriminator(images), discriminator(generator(noise))
            loss = cross_entropy(tf.ones_like(real), real)
            loss += cross_entropy(tf.zeros_like(fake), fake)
            loss = late(loss, turn % size != rank)
        apply(discriminator_optimizer, tape, loss, discriminator.trainable_variables)

    @tf.function
    def step(noise, images, turn):
        train_generator(noise, turn)
        train_discriminator(noise, images, turn)

    return step


def _train_gan(rows, distribute):
    made = _networks()
    step = _trainer(*made, distribute)
    values = np.random.default_rng(0)
    for turn in range(10):
        noise = values.normal(size=(4 * size, 3)).astype("float32")
        images = values.normal(size=(4 * size, 4)).astype("float32")
        step(tf.constant(noise[rows]), tf.constant(images[rows]), tf.constant(turn))
    weights = made[0].trainable_variables + made[1].trainable_variables
    return np.concatenate([one.numpy().ravel() for one in weights])


def a_gan_of_functions():
    got = _train_gan(slice(rank * 4, rank * 4 + 4), hvd.DistributedGradientTape)
    want = _train_gan(slice(None), lambda tape: tape)
    gathered = hvd.allgather(tf.constant(got[None])).numpy()
    assert (gathered == gathered[0]).all(), "the ranks have different weights"
    report(difference=float(np.abs(got - want).max()))
