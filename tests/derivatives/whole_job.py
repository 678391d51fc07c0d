"""The model of a job: all ranks in one process.

A collective is its mathematical definition along the dimension of the ranks, and its gradient is
Horovod's: a sum's is the sum of the ranks' gradients, a broadcast's and an allgather's are
averages.
The model runs eagerly and without functions, so only TensorFlow's eager tape is trusted.
"""

import numpy as np
import tensorflow as tf
from common import DTYPE, ROWS, Common, K, flat, numbers, weights


class Model(Common):
    """All ranks of a job at once."""

    model = True

    def __init__(self, size, sets=()):
        self.size, self.sets = size, sets

    def function(self, **options):
        return lambda f: f

    def _all(self, site, shape):
        rows = [numbers(site, rank, shape) for rank in range(self.size)]
        return np.stack(rows)

    def vector(self, site):
        return tf.constant(self._all(site, (K,)), DTYPE)

    def variable(self, site):
        return tf.Variable(self._all(site, (K,)), dtype=DTYPE)

    def table(self, site):
        return tf.Variable(self._all(site, (ROWS, K)), dtype=DTYPE)

    def scalar(self, site):
        return tf.constant(self._all(site, ())[:, None], DTYPE)

    def lookup(self, table, t):
        return tf.gather(table, t % ROWS, axis=1)

    def total(self, y):
        return tf.reduce_sum(y)

    def _mix(self, x, matrix):
        """The matrix times x, along the ranks."""
        return tf.tensordot(tf.constant(matrix, DTYPE), x, 1)

    def _reduce(self, x, scale, ranks=None):
        """The scaled sum over the ranks, which has the same gradient; others keep theirs."""
        matrix = np.eye(self.size)
        ranks = list(range(self.size)) if ranks is None else ranks
        for one in ranks:
            matrix[one] = [scale * (other in ranks) for other in range(self.size)]

        def reduce(x):
            return tf.custom_gradient(lambda x: (self._mix(x, matrix), reduce))(x)

        return reduce(x)

    def allreduce(self, x, op="Sum", pre=1.0, post=1.0, name=None):
        scale = pre * post * (1 / self.size if op == "Average" else 1.0)
        return self._reduce(x, scale)

    def grouped(self, xs, op="Sum", name=None):
        return [self.allreduce(x, op) for x in xs]

    def integers(self, t, name=None):
        return tf.cast(t * self.size + sum(range(self.size)), DTYPE)

    def agreed(self, y):
        return tf.reduce_sum(y) > 0.1234

    def subset(self, x, which, op="Sum", name=None):
        ranks = self.sets[which][0]
        return self._reduce(x, 1 / len(ranks) if op == "Average" else 1.0, ranks)

    def broadcast(self, x, root, name=None):
        matrix, mask = np.zeros([self.size] * 2), np.zeros([self.size] * 2)
        matrix[:, root], mask[root, root] = 1, 1

        def gradient(upstream):
            return self._mix(self._reduce(upstream, 1 / self.size), mask)

        return tf.custom_gradient(lambda x: (self._mix(x, matrix), gradient))(x)

    def allgather(self, x, name=None):
        return self._gather([x[rank] for rank in range(self.size)])

    def _gather(self, rows):
        @tf.custom_gradient
        def gather(*rows):
            def gradient(upstream):
                averaged = self._reduce(upstream, 1 / self.size)
                parts = [tf.split(each, sizes) for each in tf.unstack(averaged)]
                return [parts[rank][rank] for rank in range(self.size)]

            return tf.stack([tf.concat(rows, 0)] * self.size), gradient

        sizes = [int(row.shape[0]) for row in rows]
        return gather(*rows)

    def uneven(self, x, name=None):
        got = self._gather([x[rank, : rank % K + 1] for rank in range(self.size)])
        count = tf.range(1.0, tf.cast(got.shape[1], DTYPE) + 1.0)
        return tf.reduce_sum(got * count, -1, keepdims=True) * x

    def alltoall(self, x, name=None):
        parts = tf.reshape(x, [self.size, self.size, -1])
        return tf.reshape(tf.transpose(parts, [1, 0, 2]), [self.size, -1])

    def reducescatter(self, x, op="Sum", name=None):
        scale = 1 / self.size if op == "Average" else 1.0

        @tf.custom_gradient
        def scatter(x):
            def gradient(upstream):
                upstream = upstream * (self.size if op == "Sum" else 1.0)
                return self.allgather(upstream)

            parts = tf.reshape(x, [self.size, self.size, -1])
            return tf.reduce_sum(parts, 0) * scale, gradient

        return scatter(x)

    def slices(self, x, t, op="Sum", name=None):
        rows = [
            tf.pad(
                x[rank][None], [[(int(t) + rank) % ROWS, ROWS - 1 - (int(t) + rank) % ROWS], [0, 0]]
            )
            for rank in range(self.size)
        ]
        return self.table_sum(self.allreduce(tf.stack(rows), op))

    # ---- differentiation ----

    def distributed(self, tape, op):
        return _ModelTape(self, tape, op)

    def _rows(self, tape, y, x):
        """The jacobian: all ranks' gradients of each element at once."""
        rows = []
        for i in range(K):
            one = tf.ones_like(y) * tf.one_hot(i, K, dtype=DTYPE)
            none = tf.UnconnectedGradients.ZERO
            rows.append(flat(tape.gradient(y, x, one, none)) * weights(K)[i])
        return tf.add_n(rows)

    def jacobian(self, tape, y, x, pfor=True):
        return self._rows(tape, y, x)

    def batch_jacobian(self, tape, y, x, pfor=True):
        return tf.reduce_sum(self._rows(tape, y, x), 1)

    def symbolic(self, function, x):
        return self.symbolic_by_tape(function, x)

    def recompute(self, function):
        return function

    def vectorized_map(self, function, elements):
        return tf.stack([function(one) for one in elements])


class _ModelTape:
    def __init__(self, model, tape, op):
        self._model, self._tape, self._op = model, tape, op

    def __enter__(self):
        self._tape.__enter__()
        return self

    def __exit__(self, *error):
        return self._tape.__exit__(*error)

    def watch(self, x):
        self._tape.watch(x)

    def gradient(self, target, sources, output_gradients=None, unconnected_gradients=None):
        grads = self._tape.gradient(target, sources, output_gradients, unconnected_gradients)
        return [self._model.allreduce(flat(grad), self._op) for grad in grads]


# tf.map_fn converts its function with AutoGraph even in eager mode, and what that calls.
for _kind in (Model, _ModelTape):
    for _name, _method in list(vars(_kind).items()):
        if callable(_method):
            setattr(_kind, _name, tf.autograph.experimental.do_not_convert(_method))
