"""What ranks do in test_sparse_in_jit.py."""

import keras_modes
import numpy as np
import tensorflow as tf
from checks import raises
from harness import rank, report, size
from keras_modes import Mode

import smddp_tf as hvd
import smddp_tf.keras as hvd_keras

keras = tf.keras


def _large_table():
    inputs = keras.Input((6,), dtype="int32")
    rows = keras.layers.Embedding(4000, 4)(inputs)
    hidden = keras.layers.Flatten()(rows)
    return keras.Model(inputs, keras.layers.Dense(keras_modes.CLASSES)(hidden))


def embeddings_fit():
    options = {"inputs": keras_modes.IDS, "jit_compile": True}
    passes = {"backward_passes_per_step": 2, "average_aggregated_gradients": True}
    modes = {
        "large table, adam": Mode(
            lambda: keras.optimizers.Adam(0.01),
            model=_large_table,
            tolerance=keras_modes.ADAM_TOLERANCE,
            **options,
        ),
        "small table, two passes": Mode(
            model=keras_modes.embedding_model, joined=2, distribute=passes, **options
        ),
    }
    report(differences=keras_modes.check(modes))
    _what_fit_moves()


def _what_fit_moves():
    """Rows where the data declare a batch size, and else the table; as docs/keras.md has it.

    Keras 3.16 finds the size itself, until a batch has another one.
    """
    ids, y = keras_modes.IDS[:24], keras_modes.Y[:24]
    pairs = tf.data.Dataset.from_tensor_slices((ids, y))
    table = 4000 * 4 * 4
    version = getattr(keras, "__version__", "2.15")  # Keras 2's lazy module has none
    version = tuple(map(int, version.split(".")[:2]))
    for declared, data in (
        (True, (ids, y)),
        (True, (pairs.batch(12, drop_remainder=True),)),
        (version >= (3, 16), (pairs.batch(12),)),
        (False, (ids[:18], y[:18])),
    ):
        model = _large_table()
        optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.1))
        model.compile(optimizer, keras_modes.loss_object(), jit_compile=True)
        before = hvd.stats()["collective_bytes"]
        model.fit(*data, batch_size=12 if len(data) == 2 else None, verbose=0)
        moved = hvd.stats()["collective_bytes"] - before
        assert (moved < table) == declared, (declared, data, moved, table)


def _want(op, rows_of):
    total = np.zeros((50, 2), "float32")
    for r in range(size):
        for i, row in enumerate(rows_of(r)):
            total[row] += [r + 1.0, i]
    return total / (size if op == hvd.Average else 1)


def _few(r):
    return [r, 7, 7]


def _many(r):
    return [(r + i) % 50 for i in range(40)]


def _gathers(rows_of, op) -> bool:
    """Whether the tape gives slices: rows were gathered, as they are smaller than the table."""
    own = rows_of(rank)
    upstream = tf.constant([[rank + 1.0, float(i)] for i in range(len(own))])
    table = tf.Variable(tf.ones([50, 2]))
    gathers = []

    @tf.function(jit_compile=True)
    def of_the_tape():
        with hvd.DistributedGradientTape(tf.GradientTape(), op=op) as tape:
            loss = tf.reduce_sum(tf.gather(table, own) * upstream)
        grad = tape.gradient(loss, table)
        gathers.append(isinstance(grad, tf.IndexedSlices))
        return tf.convert_to_tensor(grad)

    @tf.function(jit_compile=True)
    def by_hand():
        slices = tf.IndexedSlices(upstream, tf.constant(own), tf.constant([50, 2]))
        reduced = hvd.allreduce(slices, op=op)
        assert isinstance(reduced, tf.IndexedSlices)
        return tf.convert_to_tensor(reduced)

    # XLA fuses the division otherwise: an ulp of numbers up to 40
    for got in (of_the_tape(), by_hand()):
        assert np.allclose(got, _want(op, rows_of), rtol=0, atol=4e-6), (op, got)
    return gathers[-1]


@tf.function(jit_compile=True, input_signature=[tf.TensorSpec([None], tf.int32)])
def _unknown(rows):
    """Rows whose number is not known when it is traced."""
    table = tf.zeros([50, 2])
    with tf.GradientTape() as tape:
        tape.watch(table)
        loss = tf.reduce_sum(tf.gather(table, rows))
    return hvd.DistributedGradientTape(tape).gradient(loss, table)


@tf.function(jit_compile=True)
def _shapeless():
    """No dense_shape."""
    one = tf.IndexedSlices(tf.fill([2, 2], 1.0 + rank), tf.constant([1, 2]))
    reduced = hvd.allreduce(one, op=hvd.Sum)
    return reduced.values, reduced.indices


@tf.function(jit_compile=True)
def _uneven():
    """Other numbers of rows on the ranks, where rows are gathered."""
    rows = tf.zeros([1 + rank], tf.int32)
    one = tf.IndexedSlices(tf.ones([1 + rank, 2]), rows, tf.constant([50, 2]))
    return hvd.allreduce(one).values


def slices():
    for op in (hvd.Sum, hvd.Average):
        assert _gathers(_few, op)
    for op in (hvd.Sum, hvd.Average):
        assert not _gathers(_many, op)
    got = tf.convert_to_tensor(_unknown(tf.range(3 + rank)))
    assert np.allclose(got[3 + size - 1 :], 0) and np.allclose(got[:3], 1), got
    values, indices = _shapeless()
    assert list(indices.numpy()) == [1, 2] * size and float(values[-1, 0]) == size
    kinds = (tf.errors.InternalError, tf.errors.FailedPreconditionError)
    with raises(kinds, "[1, 2]", "needs as many rows on all ranks"):  # all are told
        _uneven()
    report(done=True)
