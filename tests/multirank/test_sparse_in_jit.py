"""Sparse gradients under jit_compile=True, which fit() chooses by itself on machines with a GPU."""

from conftest import KERASES, PYTHONS, on_ranks

FIT = """
import keras_modes
from keras_modes import Mode
def large_table():
    inputs = keras.Input((6,), dtype="int32")
    rows = keras.layers.Embedding(4000, 4)(inputs)
    hidden = keras.layers.Flatten()(rows)
    return keras.Model(inputs, keras.layers.Dense(keras_modes.CLASSES)(hidden))
options = dict(inputs=keras_modes.IDS, jit_compile=True)
modes = {
    "large table, adam": Mode(lambda: keras.optimizers.Adam(0.01), model=large_table,
                              tolerance=keras_modes.ADAM_TOLERANCE, **options),
    "small table, two passes": Mode(model=keras_modes.embedding_model, joined=2, distribute={
        "backward_passes_per_step": 2, "average_aggregated_gradients": True}, **options),
}
report(differences={name: mode.check(name) for name, mode in modes.items()})
"""


@on_ranks("keras_job", KERASES, 2)
def test_embeddings_fit_in_jit(keras_job, ranks):
    """fit(jit_compile=True) on an Embedding equals one process, with and without sums of passes."""
    keras_job(FIT, ranks).check(ranks)


TAPE = """
def want(op, rows_of):
    total = np.zeros((50, 2), "float32")
    for r in range(size):
        for i, row in enumerate(rows_of(r)):
            total[row] += [r + 1.0, i]
    return total / (size if op == hvd.Average else 1)
def few(r):
    return [r, 7, 7]
def many(r):
    return [(r + i) % 50 for i in range(40)]
gathers = {}
for rows_of in (few, many):
    own = rows_of(rank)
    upstream = tf.constant([[rank + 1.0, float(i)] for i in range(len(own))])
    for op in (hvd.Sum, hvd.Average):
        table = tf.Variable(tf.ones([50, 2]))
        @tf.function(jit_compile=True)
        def of_the_tape():
            with hvd.DistributedGradientTape(tf.GradientTape(), op=op) as tape:
                loss = tf.reduce_sum(tf.gather(table, own) * upstream)
            grad = tape.gradient(loss, table)
            gathers[rows_of.__name__] = isinstance(grad, tf.IndexedSlices)
            return tf.convert_to_tensor(grad)
        @tf.function(jit_compile=True)
        def by_hand():
            slices = tf.IndexedSlices(upstream, tf.constant(own), tf.constant([50, 2]))
            reduced = hvd.allreduce(slices, op=op)
            assert isinstance(reduced, tf.IndexedSlices)
            return tf.convert_to_tensor(reduced)
        # XLA fuses the division otherwise: an ulp of numbers up to 40
        for got in (of_the_tape(), by_hand()):
            assert np.allclose(got, want(op, rows_of), rtol=0, atol=4e-6), (op, got)
assert gathers == {"few": True, "many": False}, gathers
# Rows whose number is not known when it is traced; and no dense_shape.
@tf.function(jit_compile=True, input_signature=[tf.TensorSpec([None], tf.int32)])
def unknown(rows):
    table = tf.zeros([50, 2])
    with tf.GradientTape() as tape:
        tape.watch(table)
        loss = tf.reduce_sum(tf.gather(table, rows))
    return hvd.DistributedGradientTape(tape).gradient(loss, table)
got = tf.convert_to_tensor(unknown(tf.range(3 + rank)))
assert np.allclose(got[3 + size - 1:], 0) and np.allclose(got[:3], 1), got
@tf.function(jit_compile=True)
def shapeless():
    one = tf.IndexedSlices(tf.fill([2, 2], 1.0 + rank), tf.constant([1, 2]))
    reduced = hvd.allreduce(one, op=hvd.Sum)
    return reduced.values, reduced.indices
values, indices = shapeless()
assert list(indices.numpy()) == [1, 2] * size and float(values[-1, 0]) == size
# Other numbers of rows on the ranks, where rows are gathered: told, on all ranks.
@tf.function(jit_compile=True)
def uneven():
    rows = tf.zeros([1 + rank], tf.int32)
    one = tf.IndexedSlices(tf.ones([1 + rank, 2]), rows, tf.constant([50, 2]))
    return hvd.allreduce(one).values
try:
    uneven()
    raise SystemExit("uneven rows were gathered")
except (tf.errors.InternalError, tf.errors.FailedPreconditionError) as error:
    assert "[1, 2]" in str(error) and "needs as many rows on all ranks" in str(error), error
report(done=True)
"""


@on_ranks("python", PYTHONS, 2)
def test_slices_in_jit(job, python, ranks):
    """The tape and allreduce, by what is smaller: the table or all ranks' rows."""
    job(TAPE, ranks, python=python).check(ranks)
