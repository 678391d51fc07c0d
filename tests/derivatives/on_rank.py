"""What programs compute with on a rank of a job."""

import numpy as np
import tensorflow as tf
from common import DTYPE, ROWS, Common, K, numbers, weights

import smddp_tf as hvd


class Rank(Common):
    """A rank of a job."""

    model = False

    def __init__(self, collectives=hvd, sets=(), thread=""):
        self.hvd, self.rank, self.size = collectives, hvd.rank(), hvd.size()
        self.sets, self._thread = sets, thread

    def _named(self, name):
        """Names that a script gives tell threads apart, as the default ones do."""
        return name and self._thread + name

    def function(self, **options):
        return lambda f: tf.function(f, **options)

    def vector(self, site):
        return tf.constant(numbers(site, self.rank), DTYPE)

    def variable(self, site):
        return tf.Variable(numbers(site, self.rank), dtype=DTYPE)

    def table(self, site):
        return tf.Variable(numbers(site, self.rank, (ROWS, K)), dtype=DTYPE)

    def scalar(self, site):
        """A number of this rank's own."""
        return float(numbers(site, self.rank, ()))

    @tf.autograph.experimental.do_not_convert
    def late(self, x, site):
        """X; some ranks are late with it, or with its gradient."""
        draw = np.random.default_rng([site, self.rank, 7]).integers(0, 3)
        if draw == 0:
            return x

        def slow(like):
            y = tf.fill([1 << 14], tf.sigmoid(tf.reduce_sum(like)))
            for _ in range(12):
                y = tf.tanh(y)
            return tf.minimum(tf.reduce_max(tf.abs(y)), 0.0)

        @tf.custom_gradient
        def identity(x):
            def gradient(upstream):
                return upstream + slow(tf.stop_gradient(upstream)) if draw == 1 else upstream

            return x + slow(x) if draw == 2 else tf.identity(x), gradient

        return identity(x)

    def lookup(self, table, t):
        return tf.gather(table, t % ROWS)

    def total(self, y):
        return tf.reduce_sum(y)

    @tf.autograph.experimental.do_not_convert
    def allreduce(self, x, op="Sum", pre=1.0, post=1.0, name=None):
        scales = {"prescale_factor": pre, "postscale_factor": post}
        return self.hvd.allreduce(x, op=getattr(hvd, op), name=self._named(name), **scales)

    @tf.autograph.experimental.do_not_convert
    def grouped(self, xs, op="Sum", name=None):
        return self.hvd.grouped_allreduce(xs, op=getattr(hvd, op), name=self._named(name))

    @tf.autograph.experimental.do_not_convert
    def integers(self, t, name=None):
        """A sum of integers, as a number."""
        return tf.cast(self.hvd.allreduce(t + self.rank, op=hvd.Sum, name=self._named(name)), DTYPE)

    @tf.autograph.experimental.do_not_convert
    def agreed(self, y):
        """A truth that all ranks share."""
        y = self.hvd.allreduce(tf.stop_gradient(y), op=hvd.Sum)
        return tf.reduce_sum(y) > 0.1234

    @tf.autograph.experimental.do_not_convert
    def subset(self, x, which, op="Sum", name=None):
        """An allreduce among some of the ranks."""
        ranks, chosen = self.sets[which]
        if self.rank not in ranks:
            return x
        return self.hvd.allreduce(
            x, op=getattr(hvd, op), name=self._named(name), process_set=chosen
        )

    @tf.autograph.experimental.do_not_convert
    def broadcast(self, x, root, name=None):
        return self.hvd.broadcast(x, root, name=self._named(name))

    @tf.autograph.experimental.do_not_convert
    def allgather(self, x, name=None):
        return self.hvd.allgather(x, name=self._named(name))

    @tf.autograph.experimental.do_not_convert
    def uneven(self, x, name=None):
        """An allgather of rank + 1 numbers of each rank."""
        got = self.hvd.allgather(x[: self.rank % K + 1], name=self._named(name))
        return tf.reduce_sum(got * tf.range(1.0, tf.cast(tf.size(got), DTYPE) + 1.0)) * x

    @tf.autograph.experimental.do_not_convert
    def alltoall(self, x, name=None):
        return self.hvd.alltoall(x, name=self._named(name))

    @tf.autograph.experimental.do_not_convert
    def reducescatter(self, x, op="Sum", name=None):
        return self.hvd.reducescatter(x, op=getattr(hvd, op), name=self._named(name))

    @tf.autograph.experimental.do_not_convert
    def slices(self, x, t, op="Sum", name=None):
        """An allreduce of a slice."""
        row = (t + self.rank) % ROWS
        slices = tf.IndexedSlices(x[None], [row], tf.constant([ROWS, K]))
        got = self.hvd.allreduce(slices, op=getattr(hvd, op), name=self._named(name))
        return self.table_sum(tf.convert_to_tensor(got))

    # ---- differentiation ----

    def distributed(self, tape, op):
        return self.hvd.DistributedGradientTape(tape, op=getattr(hvd, op))

    @tf.autograph.experimental.do_not_convert
    def jacobian(self, tape, y, x, pfor=True):
        rows = tape.jacobian(y, x, unconnected_gradients="zero", experimental_use_pfor=pfor)
        return tf.reduce_sum(rows * weights(K)[:, None], 0)

    @tf.autograph.experimental.do_not_convert
    def batch_jacobian(self, tape, y, x, pfor=True):
        none = tf.UnconnectedGradients.ZERO
        rows = tape.batch_jacobian(y, x, none, experimental_use_pfor=pfor)
        return tf.reduce_sum(rows * weights(K)[:, None], [0, 1])

    @tf.autograph.experimental.do_not_convert
    def symbolic(self, function, x):
        """What tf.gradients() gives, in graphs."""
        if tf.executing_eagerly():
            return self.symbolic_by_tape(function, x)
        x = tf.identity(x)
        y = function(x)
        [grad] = tf.gradients(self.total(y), [x], unconnected_gradients="zero")
        return y, grad

    def recompute(self, function):
        return tf.recompute_grad(function)

    @property
    def vectorized_map(self):
        return tf.vectorized_map


class Alone:
    """Stands for smddp_tf: shapes as on so many ranks, numbers of none.

    Where a program fails with it too, the fault is TensorFlow's.
    """

    def __init__(self, size):
        self.size = size

    def allreduce(self, x, **_):
        return (
            tf.IndexedSlices(x.values * 2.0, x.indices, x.dense_shape)
            if isinstance(x, tf.IndexedSlices)
            else tf.identity(x) * 2
        )

    def grouped_allreduce(self, xs, **_):
        return [tf.identity(x) * 2 for x in xs]

    def broadcast(self, x, root, **_):
        return tf.identity(x)

    def allgather(self, x, **_):
        return tf.concat([x] * self.size, 0)

    def alltoall(self, x, **_):
        return tf.identity(x)

    def reducescatter(self, x, **_):
        return tf.reduce_sum(tf.reshape(x, [self.size, -1]), 0)

    def DistributedGradientTape(self, tape, **_):  # noqa: N802
        return tape
