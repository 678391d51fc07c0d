"""hvd.shard, through mpirun."""

from conftest import KERASES, on_ranks

SHARD = """
def elements(dataset):
    return [int(e) for e in dataset]
for n in (size, 10, 11, 12):
    known = tf.data.Dataset.range(n)
    unknown = known.filter(lambda e: True)
    for dataset in (known, unknown):
        dropped = hvd.allgather_object(elements(hvd.shard(dataset)))
        assert [len(d) for d in dropped] == [n // size] * size
        assert sorted(sum(dropped, [])) == list(range(n - n % size))
        repeated = hvd.allgather_object(elements(hvd.shard(dataset, uneven="repeat")))
        assert [len(d) for d in repeated] == [-(-n // size)] * size
        assert set(sum(repeated, [])) == set(range(n))
    x, y = hvd.shard((np.arange(n), np.arange(n) * 2))
    assert len(x) == n // size and (y == 2 * x).all()
    x = hvd.shard(tf.range(n), uneven="repeat")
    assert len(x) == -(-n // size)
pairs = tf.data.Dataset.range(9).map(lambda e: {"a": e, "b": (e, e * 2)}).filter(lambda e: True)
for element in hvd.shard(pairs):
    assert int(element["b"][1]) == 2 * int(element["a"])
assert elements(hvd.shard(tf.data.Dataset.range(5).repeat()).take(2))[0] == rank
for bad in (lambda: hvd.shard(tf.data.Dataset.range(1)), lambda: hvd.shard(np.arange(1)),
            lambda: hvd.shard(np.arange(9), uneven="x"),
            lambda: hvd.shard((np.arange(3), np.arange(4)))):
    try:
        bad()
        raise SystemExit("accepted")
    except ValueError:
        pass
report(done=True)
"""


@on_ranks("keras_job", KERASES, 2, 3)
def test_shard(keras_job, ranks):
    """Every rank gets the same number of elements, and none is lost that need not be."""
    keras_job(SHARD, ranks).check(ranks)


SHUFFLED = """
keras.utils.set_random_seed(rank)  # as scripts do; the order must not depend on it
n, epochs = 103, 3
x = np.arange(n)
def passes(dataset):
    return [[int(e) for e in dataset] for _ in range(epochs)]
def check(of_rank, uneven):
    # of_rank[rank][epoch] is what a rank saw.
    of_rank = hvd.allgather_object(of_rank)
    own = n // size if uneven == "drop" else -(-n // size)
    orders = []
    for epoch in range(epochs):
        parts = [of_rank[r][epoch] for r in range(size)]
        assert [len(p) for p in parts] == [own] * size, [len(p) for p in parts]
        seen = sum(parts, [])
        if uneven == "drop":
            assert len(set(seen)) == own * size, (epoch, len(set(seen)))
        else:
            assert set(seen) == set(range(n)), (epoch, len(set(seen)))
        orders.append(tuple(parts[0]))
    assert len(set(orders)) == epochs, "the same order in each epoch"
    assert len(set(map(frozenset, orders))) == epochs, "the same elements in each epoch"
known = tf.data.Dataset.range(n)
unknown = known.filter(lambda e: True)
for uneven in ("drop", "repeat"):
    options = {"uneven": uneven, "shuffle": True, "seed": 5}
    check(passes(hvd.shard(x, **options)), uneven)
    check(passes(hvd.shard(known, **options)), uneven)
    check(passes(hvd.shard(unknown, buffer_size=20, **options)), uneven)
    # One iterator for all epochs, as fit(steps_per_epoch=...) has.
    batched = hvd.shard(x, **options).batch(16, drop_remainder=False).repeat(epochs).unbatch()
    flat = [int(e) for e in batched]
    check([list(part) for part in np.split(np.array(flat), epochs)], uneven)
assert int(hvd.shard(x, shuffle=True).cardinality()) == n // size
assert int(hvd.shard(known, shuffle=True).cardinality()) == n // size
# Seeds matter, and ranks that start anew get the same.
first = passes(hvd.shard(x, shuffle=True, seed=1))
assert first == passes(hvd.shard(x, shuffle=True, seed=1))
assert first != passes(hvd.shard(x, shuffle=True, seed=2))
# As in a script: fit() sees every element once an epoch, whatever form the data have.
class Recording(keras.Model):
    def train_step(self, data):
        ids.extend(int(i) for i in data[0][:, 0])
        return super().train_step(data)
ids = []
class Batches(getattr(keras.utils, "PyDataset", None) or keras.utils.Sequence):
    def __len__(self):
        return 17
    def __getitem__(self, i):
        rows = np.arange(i * 6, i * 6 + 6)
        return np.stack([rows, rows], 1).astype("float32"), rows.astype("float32")
def fit(data):
    inputs = keras.Input((2,))
    model = Recording(inputs, keras.layers.Dense(1)(inputs))
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(1e-9)), "mse", run_eagerly=True)
    ids.clear()
    marks = []
    mark = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: marks.append(len(ids)))
    model.fit(data, epochs=2, verbose=0, shuffle=False, callbacks=[mark])
    of_rank = hvd.allgather_object([ids[: marks[0]], ids[marks[0] :]])
    for epoch in range(2):
        all_ids = sum((parts[epoch] for parts in of_rank), [])
        assert len(all_ids) == len(set(all_ids)), "seen twice in an epoch"
    assert set(of_rank[rank][0]) != set(of_rank[rank][1]), "the same part in each epoch"
    return [len(parts[0]) for parts in of_rank]
rows = np.stack([x, x], 1).astype("float32")
pairs = (rows, x.astype("float32"))
assert fit(hvd.shard(pairs, shuffle=True).batch(8)) == [n // size] * size
dataset = tf.data.Dataset.from_tensor_slices(pairs)
assert fit(hvd.shard(dataset, shuffle=True).batch(8)) == [n // size] * size
assert fit(hvd.shard(Batches(), shuffle=True, seed=3)) == [17 // size * 6] * size
parts = hvd.allgather_object(
    [int(hvd.shard(Batches(), uneven="repeat")[i][1][0]) for i in range(-(-17 // size))])
assert set(sum(parts, [])) == set(range(0, 102, 6)), parts
report(done=True)
"""


@on_ranks("keras_job", KERASES, 2, 3)
def test_shuffled_for_all_ranks(keras_job, ranks):
    """Each epoch has each element once, in an order of its own; datasets, arrays and sequences."""
    keras_job(SHUFFLED, ranks).check(ranks)


FORMS = """
import warnings
x = np.arange(40.0).reshape(20, 2)
own = hvd.shard(x)
assert np.shares_memory(own, x) and (own == x[rank::size][: 20 // size]).all()
a, b, c = hvd.shard((x, list(range(20)), None))
assert c is None and np.shares_memory(a, x) and list(b) == list(range(20))[rank::size]
words = hvd.shard(["w%d" % i for i in range(20)])
assert list(words) == ["w%d" % i for i in range(20)][rank::size]
assert tf.constant(words).dtype == tf.string
nest = hvd.shard({"a": x, "b": (tf.range(20), tf.ragged.constant([[1] * i for i in range(20)]))})
assert (nest["b"][0].numpy() == np.arange(20)[rank::size]).all()
assert nest["b"][1].row_lengths().numpy().tolist() == list(range(20))[rank::size]
for element in hvd.shard((x, ["a"] * 20), shuffle=True).take(1):
    assert element[0].shape == (2,) and element[1].dtype == tf.string
def refused(error, text, *args, **options):
    try:
        hvd.shard(*args, **options)
    except error as caught:
        assert text in str(caught), caught
    else:
        raise SystemExit(f"accepted: {args} {options}")
refused(TypeError, "from_generator", (i for i in range(9)))
refused(TypeError, "from_generator", iter([1, 2]))
def generate():
    yield 1
refused(TypeError, "from_generator", generate)
refused(TypeError, "cannot be divided", 3.5)
refused(TypeError, "cannot be divided", object())
refused(TypeError, "np.asarray", [[1, 2], [3, 4]])
refused(TypeError, "cannot be divided", tf.sparse.eye(4))
refused(ValueError, "same one", x, shuffle=True, seed=-1)
refused(ValueError, "same one", x, shuffle=True, seed=None)
refused(ValueError, "no data", (None, None))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    hvd.shard(tf.data.Dataset.range(8).batch(2).prefetch(1))
    assert any("before batch" in str(w.message) for w in caught), caught
    del caught[:]
    hvd.shard(tf.data.Dataset.range(8).batch(2).unbatch())
    hvd.shard(tf.data.Dataset.range(8)).batch(2)
    assert not caught, [str(w.message) for w in caught]
report(done=True)
"""


def test_forms_of_data(keras_job):
    """Views of arrays, nests, strings and None; what cannot be divided is refused with advice."""
    keras_job(FORMS, 2).check(2)
