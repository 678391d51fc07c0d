"""What ranks do in test_loaded_functions.py: call functions of SavedModels among collectives."""

import tensorflow as tf
from harness import OUT, rank, report, size

import smddp_tf as hvd
from bodies.order import CALLS, late, mine, total


class _Sums(tf.Module):
    """Its function has a collective in a loop.

    It has a variable too: TensorFlow does not order calls with different variables.
    """

    def __init__(self):
        super().__init__()
        self.one = tf.Variable(1.0)

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])
    def of(self, x):
        for _ in tf.range(2):
            x = self.one * hvd.allreduce(x, op=hvd.Sum)
        return x


def _loaded(name):
    folder = str(OUT / f"{name}{rank}")
    tf.saved_model.save(_Sums(), folder)
    return tf.saved_model.load(folder)


def between_collectives():
    """Two loaded functions, one in a branch, and a collective of the function around them."""
    first, second = _loaded("first"), _loaded("second")

    @tf.function
    def step(turn):
        at, elsewhere = turn % size == rank, turn % size != rank
        one = first.of(late(mine(1), at))
        two = tf.cond(turn >= 0, lambda: second.of(late(mine(10), elsewhere)), lambda: 0.0)
        return one, two, hvd.allreduce(late(mine(100), at), op=hvd.Sum)

    @tf.function
    def only_loaded(turn):
        one = first.of(late(mine(1), turn % size == rank))
        return one, second.of(late(mine(10), turn % size != rank))

    want = [1.0 * total * size, 10.0 * total * size, 100.0 * total]
    for turn in range(CALLS):
        got = [float(one) for one in only_loaded(tf.constant(turn))]
        assert got == want[:2], (rank, turn, got, want)
        got = [float(one) for one in step(tf.constant(turn))]
        assert got == want, (rank, turn, got, want)
    report(done=True)


def in_a_dataset():
    """Refused where tf.data would call a loaded function for several elements at once."""
    sums = _loaded("sums")
    elements = tf.data.Dataset.range(4, output_type=tf.float32)
    try:
        elements.map(sums.of, num_parallel_calls=2)
    except ValueError as error:
        assert "a collective is inside the function of Dataset.map" in str(error), error
    else:
        raise SystemExit("accepted")
    got = [float(one) for one in elements.map(sums.of)]
    assert got == [i * size**2 for i in range(4)], got
    report(done=True)
