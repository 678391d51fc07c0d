"""The order of collectives is right where TensorFlow's own is not: every kind of graph by itself.

Ranks are late at different places, so what is not ordered comes in different orders. Inputs are
such that exchanged collectives make a wrong sum. test_random_programs.py mixes all of these.
"""

import textwrap

from conftest import PYTHONS, on_ranks

LATE = """
def late(x, when):
    "x, after a while of computing where `when` is true."
    rounds = tf.where(when, 150, 0)
    _, y = tf.while_loop(
        lambda i, _: i < rounds, lambda i, y: (i + 1, tf.tanh(y)), (0, tf.fill([4096], 0.5)))
    return x + tf.minimum(tf.reduce_max(tf.abs(y)), 0.0)
total = size * (size + 1) / 2
def mine(x):
    return tf.constant(float(x)) * (rank + 1.0)
CALLS = 20
right = {}  # kind -> calls
def run(step, *wanted, kind="graph"):
    "Calls step(turn) and compares its results with the sums over the ranks."
    wrong = []
    for turn in range(CALLS):
        got = [float(one) for one in step(tf.constant(turn))]
        if got != [one * total for one in wanted]:
            wrong.append(got)
    assert not wrong, f"{kind}, rank {rank}: {len(wrong)} of {CALLS} calls are wrong: {wrong[0]}"
    right[kind] = CALLS
"""
ENV = {"SMDDP_TIMEOUT_SECONDS": "15"}

NESTED = """
one, two = tf.Variable(1.0), tf.Variable(1.0)
@WRAP
def first(turn):
    one.assign_add(1.0)
    return REDUCE(late(mine(1), turn % size == rank), one)
@WRAP
def second(turn):
    two.assign_add(1.0)
    return REDUCE(late(mine(100), turn % size != rank), two)
@tf.function
def step(turn):
    return first(turn), second(turn)
"""

PLAIN_REDUCE = """
def reduce(x, variable):
    return hvd.allreduce(x, op=hvd.Sum)
"""

TAPE_REDUCE = """
def reduce(x, variable):
    with tf.GradientTape() as tape:
        loss = variable * x
    return hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(loss, variable)
"""


def _nested(wrap: str, reduce: str) -> str:
    return reduce + NESTED.replace("WRAP", wrap).replace("REDUCE", "reduce")


# A loop or branch that uses a variable is not in TensorFlow's own order of stateful operations.
LOOP_THEN_ANOTHER = """
variable = tf.Variable(1.0)
@tf.function
def step(turn):
    def body(i, sum):
        x = late(mine(1), turn % size == rank) * variable
        return i + 1, sum + hvd.allreduce(x, op=hvd.Sum)
    _, looped = tf.while_loop(lambda i, _: i < 3, body, (0, 0.0))
    return looped, hvd.allreduce(late(mine(100), turn % size != rank), op=hvd.Sum)
"""

PARALLEL_ITERATIONS = """
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
"""

PYTHON_LOOP = """
variable = tf.Variable(1.0)
@tf.function
def step(turn):
    looped = 0.0
    for i in tf.range(3):
        if i != 1:
            variable.assign(1.0)
            looped += hvd.allreduce(late(mine(1), turn % size == rank), op=hvd.Sum)
    return looped, hvd.allreduce(late(mine(100), turn % size != rank), op=hvd.Sum)
"""

BRANCHES = """
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
        tf.stack([mine(1000), mine(2000)]))
    fourth = hvd.allreduce(late(mine(10000), turn % size != rank), op=hvd.Sum)
    return first, second, third, mapped[0], mapped[1], fourth
"""

EAGER_AND_GRAPH = """
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
"""

JIT_BRANCHES = """
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
"""

IN_GRAPHS = {
    "nested functions": (_nested("tf.function", PLAIN_REDUCE), "1, 100"),
    "nested jit": (_nested("tf.function(jit_compile=True)", PLAIN_REDUCE), "1, 100"),
    "tape in nested functions": (_nested("tf.function", TAPE_REDUCE), "1, 100"),
    "tape in nested jit": (_nested("tf.function(jit_compile=True)", TAPE_REDUCE), "1, 100"),
    "a loop, then another": (LOOP_THEN_ANOTHER, "3, 100"),
    "parallel iterations": (PARALLEL_ITERATIONS, "1, 2, 3, 4, 5, 6"),
    "a Python loop": (PYTHON_LOOP, "2, 100"),
    "cond, case and map_fn": (BRANCHES, "1, 10, 100, 1000, 2000, 10000"),
    "eager and graph": (EAGER_AND_GRAPH, "100, 10, 1, 1000, 1"),
    "branches in jit": (JIT_BRANCHES, "1, 30, 100"),
}


def test_in_functions(job):
    """Sums are right on two ranks of which now the one and now the other is late."""
    script = LATE
    for number, (kind, (body, wanted)) in enumerate(IN_GRAPHS.items()):
        call = f"run(step, {wanted}, kind={kind!r})\n"
        script += f"def kind{number}():\n" + textwrap.indent(body + call, "    ")
        script += f"kind{number}()\n"
    results = job(script + "report(**right)\n", 2, env=ENV, timeout=150).check(2)
    assert results[0] == results[1] == dict.fromkeys(IN_GRAPHS, 20)


@on_ranks("python", PYTHONS, 2, 3)
def test_nested_functions_everywhere(job, python, ranks):
    """The oldest TensorFlow too, and three ranks."""
    body, wanted = IN_GRAPHS["nested functions"]
    script = f"{LATE}\n{body}\nrun(step, {wanted})\nreport(**right)\n"
    job(script, ranks, env=ENV, python=python, timeout=90).check(ranks)


# The step of the tutorial "Deep Convolutional GAN", with a tf.function for each network.
GAN = """
keras = tf.keras
def networks():
    keras.utils.set_random_seed(3)
    generator = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
    discriminator = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    return generator, discriminator, keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1)
cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)
def trainer(generator, discriminator, generator_optimizer, discriminator_optimizer, distribute):
    @tf.function
    def train_generator(noise, turn):
        with tf.GradientTape() as tape:
            fake = discriminator(generator(noise))
            loss = cross_entropy(tf.ones_like(fake), fake)
            loss = late(loss, turn % size == rank)
        gradients = distribute(tape).gradient(loss, generator.trainable_variables)
        generator_optimizer.apply_gradients(zip(gradients, generator.trainable_variables))
    @tf.function
    def train_discriminator(noise, images, turn):
        with tf.GradientTape() as tape:
            real, fake = discriminator(images), discriminator(generator(noise))
            loss = cross_entropy(tf.ones_like(real), real)
            loss += cross_entropy(tf.zeros_like(fake), fake)
            loss = late(loss, turn % size != rank)
        gradients = distribute(tape).gradient(loss, discriminator.trainable_variables)
        discriminator_optimizer.apply_gradients(zip(gradients, discriminator.trainable_variables))
    @tf.function
    def step(noise, images, turn):
        train_generator(noise, turn)
        train_discriminator(noise, images, turn)
    return step
def train(rows, distribute):
    made = networks()
    step = trainer(*made, distribute)
    values = np.random.default_rng(0)
    for turn in range(10):
        noise = values.normal(size=(4 * size, 3)).astype("float32")
        images = values.normal(size=(4 * size, 4)).astype("float32")
        step(tf.constant(noise[rows]), tf.constant(images[rows]), tf.constant(turn))
    weights = made[0].trainable_variables + made[1].trainable_variables
    return np.concatenate([one.numpy().ravel() for one in weights])
got = train(slice(rank * 4, rank * 4 + 4), hvd.DistributedGradientTape)
want = train(slice(None), lambda tape: tape)
gathered = hvd.allgather(tf.constant(got[None])).numpy()
assert (gathered == gathered[0]).all(), "the ranks have different weights"
difference = float(np.abs(got - want).max())
report(difference=difference)
"""


def test_a_gan_of_functions(job):
    """Ranks keep the same weights, which are near those of one process with the whole batch."""
    results = job(LATE + GAN, 2, env=ENV, timeout=90).check(2)
    for result in results.values():
        assert result["difference"] < 1e-5  # float32, 10 steps, sums of 8 terms


GAN_IN_FIT = """
import smddp_tf.keras as hvd
keras = tf.keras
keras.utils.set_random_seed(3)
class Gan(keras.Model):
    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
        self.discriminator = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        self.entropy = keras.losses.BinaryCrossentropy(from_logits=True)
    def call(self, noise):
        return self.discriminator(self.generator(noise))
    def compile(self, generator_optimizer, discriminator_optimizer):
        super().compile()
        self.generator_optimizer = generator_optimizer
        self.discriminator_optimizer = discriminator_optimizer
    def train_step(self, data):
        noise, images = data
        with tf.GradientTape() as tape:
            fake = self(noise)
            loss = self.entropy(tf.ones_like(fake), fake)
        weights = self.generator.trainable_variables
        self.generator_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        with tf.GradientTape() as tape:
            real, fake = self.discriminator(images), self(noise)
            loss = self.entropy(tf.ones_like(real), real)
            loss += self.entropy(tf.zeros_like(fake), fake)
        weights = self.discriminator.trainable_variables
        self.discriminator_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return {"loss": loss}
def optimizer():
    return hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), backward_passes_per_step=2)
gan = Gan()
gan.compile(optimizer(), optimizer())
values = np.random.default_rng(rank)
noise = values.normal(size=(24, 3)).astype("float32")
images = values.normal(size=(24, 4)).astype("float32")
before = [one.numpy() for one in gan.trainable_variables]
gan.fit(noise, images, batch_size=4, epochs=2, verbose=0)
weights = np.concatenate([one.numpy().ravel() for one in gan.trainable_variables])
assert not np.allclose(weights, np.concatenate([one.ravel() for one in before]))
gathered = hvd.allgather(tf.constant(weights[None])).numpy()
assert (gathered == gathered[0]).all(), "the ranks have different weights"
report(done=True)
"""


def test_a_gan_in_fit_with_accumulation(job):
    """Two optimizers that reduce every second step, inside cond."""
    job(GAN_IN_FIT, 2, env=ENV, timeout=90).check(2)
