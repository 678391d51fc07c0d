"""What generated programs compute with, on a rank (on_rank.py) and in the model (whole_job.py).

Programs work on vectors: [K] on a rank. In the model each has one more, first, dimension, that of
the ranks.
"""

import numpy as np
import tensorflow as tf

K = 4
ROWS = 5  # of a table; not a number of ranks
DTYPE = tf.float64


def numbers(site, rank, shape=(K,)):
    """Small numbers that differ by site and rank, none of them 0."""
    random = np.random.default_rng([site, rank])
    return random.integers(1, 9, shape) * random.choice([-0.125, 0.125], shape)


def weights(ranks):
    return np.arange(1.0, ranks + 1) / 4


def flat(grad):
    """A gradient as a dense tensor."""
    return tf.convert_to_tensor(grad) if isinstance(grad, tf.IndexedSlices) else grad


class Common:
    """What a rank and the model have in common."""

    K = K
    model = False  # of a whole job

    def late(self, x, site):
        """X, perhaps later on some ranks."""
        del site
        return x

    def add(self, grads):
        """One vector of the gradients of vectors and tables."""
        total = 0.0
        for grad in grads:
            grad = flat(grad)
            # A table's has one more dimension.
            total += self.table_sum(grad) if grad.shape[-2:] == (ROWS, K) else grad
        return total

    def grad(self, tape, loss, sources):
        """The gradients of the loss, added up."""
        none = tf.UnconnectedGradients.ZERO
        return self.add(tape.gradient(loss, sources, unconnected_gradients=none))

    def table_sum(self, table):
        """A vector of a table."""
        return tf.reduce_sum(table * weights(ROWS)[:, None], -2)

    def like(self, y, x):
        """Y with the shape of x."""
        y = tf.reshape(y, tf.shape(x))
        y.set_shape(x.shape)
        return y

    def gather(self, x, name=None):
        """An allgather, and a sum of what it gives, which weighs the ranks."""
        rows = self.allgather(x, name)
        lead = [] if not self.model else [self.size]
        rows = tf.reshape(rows, [*lead, self.size, -1])
        return self.like(tf.reduce_sum(rows * weights(self.size)[:, None], -2), x)

    def exchange(self, x, name=None):
        """An alltoall of the vector, times another number for each rank."""
        lead = [] if not self.model else [self.size]
        rows = tf.expand_dims(x, -2) * weights(self.size)[:, None]
        got = self.alltoall(tf.reshape(rows, [*lead, -1]), name)
        got = tf.reshape(got, [*lead, self.size, -1])
        return self.like(tf.reduce_sum(got * weights(self.size)[:, None], -2), x)

    def scatter(self, x, op, name=None):
        """A reducescatter of the vector, times another number for each rank."""
        lead = [] if not self.model else [self.size]
        rows = tf.expand_dims(x, -2) * weights(self.size)[:, None]
        return self.like(self.reducescatter(tf.reshape(rows, [*lead, -1]), op, name), x)

    def symbolic_by_tape(self, function, x):
        """The value of a function and its gradient."""
        x = tf.identity(x)  # another tensor than what the function may capture
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
            loss = self.total(y)
        return y, self.grad(tape, loss, [x])
