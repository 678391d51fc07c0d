"""What ranks do in test_keras_data.py."""

import warnings

import numpy as np
import tensorflow as tf
from checks import raises
from harness import rank, report, size

import smddp_tf.keras as hvd

keras = tf.keras
Dataset = tf.data.Dataset
N, EPOCHS = 103, 3


def _elements(dataset):
    return [int(e) for e in dataset]


def _check_parts(n):
    known = Dataset.range(n)
    unknown = known.filter(lambda e: True)
    for dataset in (known, unknown):
        dropped = hvd.allgather_object(_elements(hvd.shard(dataset)))
        assert [len(d) for d in dropped] == [n // size] * size
        assert sorted(sum(dropped, [])) == list(range(n - n % size))
        repeated = hvd.allgather_object(_elements(hvd.shard(dataset, uneven="repeat")))
        assert [len(d) for d in repeated] == [-(-n // size)] * size
        assert set(sum(repeated, [])) == set(range(n))
    x, y = hvd.shard((np.arange(n), np.arange(n) * 2))
    assert len(x) == n // size and (y == 2 * x).all()
    x = hvd.shard(tf.range(n), uneven="repeat")
    assert len(x) == -(-n // size)


def shard():
    for n in (size, 10, 11, 12):
        _check_parts(n)
    pairs = Dataset.range(9).map(lambda e: {"a": e, "b": (e, e * 2)}).filter(lambda e: True)
    for element in hvd.shard(pairs):
        assert int(element["b"][1]) == 2 * int(element["a"])
    for ones in (Dataset.range(9).map(lambda e: (e,)), Dataset.range(9)):
        for uneven in ("drop", "repeat"):
            part = hvd.shard(ones.filter(lambda *_: True), uneven=uneven)
            assert part.element_spec == ones.element_spec, (part.element_spec, uneven)
    assert _elements(hvd.shard(Dataset.range(5).repeat()).take(2))[0] == rank
    for bad in (
        lambda: hvd.shard(Dataset.range(1)),
        lambda: hvd.shard(np.arange(1)),
        lambda: hvd.shard(np.arange(9), uneven="x"),
        lambda: hvd.shard((np.arange(3), np.arange(4))),
    ):
        with raises(ValueError):
            bad()
    report(done=True)


def _passes(dataset):
    return [_elements(dataset) for _ in range(EPOCHS)]


def _check_epochs(of_rank, uneven):
    """of_rank[rank][epoch] is what a rank saw; what is given is this rank's."""
    of_rank = hvd.allgather_object(of_rank)
    own = N // size if uneven == "drop" else -(-N // size)
    orders = []
    for epoch in range(EPOCHS):
        parts = [of_rank[r][epoch] for r in range(size)]
        assert [len(p) for p in parts] == [own] * size, [len(p) for p in parts]
        seen = sum(parts, [])
        if uneven == "drop":
            assert len(set(seen)) == own * size, (epoch, len(set(seen)))
        else:
            assert set(seen) == set(range(N)), (epoch, len(set(seen)))
        orders.append(tuple(parts[0]))
    assert len(set(orders)) == EPOCHS, "the same order in each epoch"
    assert len(set(map(frozenset, orders))) == EPOCHS, "the same elements in each epoch"


def _shuffled_passes(x):
    known = Dataset.range(N)
    unknown = known.filter(lambda e: True)
    for uneven in ("drop", "repeat"):
        options = {"uneven": uneven, "shuffle": True, "seed": 5}
        _check_epochs(_passes(hvd.shard(x, **options)), uneven)
        _check_epochs(_passes(hvd.shard(known, **options)), uneven)
        _check_epochs(_passes(hvd.shard(unknown, buffer_size=20, **options)), uneven)
        # One iterator for all epochs, as fit(steps_per_epoch=...) has.
        batches = hvd.shard(x, **options).batch(16, drop_remainder=False)
        flat = _elements(batches.repeat(EPOCHS).unbatch())
        _check_epochs([list(part) for part in np.split(np.array(flat), EPOCHS)], uneven)
    assert int(hvd.shard(x, shuffle=True).cardinality()) == N // size
    assert int(hvd.shard(known, shuffle=True).cardinality()) == N // size
    # Seeds matter, and ranks that start anew get the same.
    first = _passes(hvd.shard(x, shuffle=True, seed=1))
    assert first == _passes(hvd.shard(x, shuffle=True, seed=1))
    assert first != _passes(hvd.shard(x, shuffle=True, seed=2))


class Recording(keras.Model):
    """Notes the samples that it is trained on, which are their first numbers."""

    def train_step(self, data):
        self.ids.extend(int(i) for i in data[0][:, 0])
        return super().train_step(data)


class Batches(getattr(keras.utils, "PyDataset", None) or keras.utils.Sequence):
    def __len__(self):
        return 17

    def __getitem__(self, i):
        rows = np.arange(i * 6, i * 6 + 6)
        return np.stack([rows, rows], 1).astype("float32"), rows.astype("float32")


def _fit(data):
    """How many samples each rank saw in an epoch; none is seen twice."""
    ids, marks = [], []
    inputs = keras.Input((2,))
    model = Recording(inputs, keras.layers.Dense(1)(inputs))
    object.__setattr__(model, "ids", ids)  # Keras would keep a copy
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(1e-9)), "mse", run_eagerly=True)
    mark = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: marks.append(len(ids)))
    model.fit(data, epochs=2, verbose=0, shuffle=False, callbacks=[mark])
    of_rank = hvd.allgather_object([ids[: marks[0]], ids[marks[0] :]])
    for epoch in range(2):
        all_ids = sum((parts[epoch] for parts in of_rank), [])
        assert len(all_ids) == len(set(all_ids)), "seen twice in an epoch"
    assert set(of_rank[rank][0]) != set(of_rank[rank][1]), "the same part in each epoch"
    return [len(parts[0]) for parts in of_rank]


def shuffled():
    keras.utils.set_random_seed(rank)  # as scripts do; the order must not depend on it
    x = np.arange(N)
    _shuffled_passes(x)
    # As in a script: fit() sees every element once an epoch, whatever form the data have.
    rows = np.stack([x, x], 1).astype("float32")
    pairs = (rows, x.astype("float32"))
    assert _fit(hvd.shard(pairs, shuffle=True).batch(8)) == [N // size] * size
    dataset = Dataset.from_tensor_slices(pairs)
    assert _fit(hvd.shard(dataset, shuffle=True).batch(8)) == [N // size] * size
    assert _fit(hvd.shard(Batches(), shuffle=True, seed=3)) == [17 // size * 6] * size
    own = [int(hvd.shard(Batches(), uneven="repeat")[i][1][0]) for i in range(-(-17 // size))]
    parts = hvd.allgather_object(own)
    assert set(sum(parts, [])) == set(range(0, 102, 6)), parts
    report(done=True)


def _views_and_nests(x):
    own = hvd.shard(x)
    assert np.shares_memory(own, x) and (own == x[rank::size][: 20 // size]).all()
    a, b, c = hvd.shard((x, list(range(20)), None))
    assert c is None and np.shares_memory(a, x) and list(b) == list(range(20))[rank::size]
    texts = [f"w{i}" for i in range(20)]
    words = hvd.shard(texts)
    assert list(words) == texts[rank::size]
    assert tf.constant(words).dtype == tf.string
    ragged = tf.ragged.constant([[1] * i for i in range(20)])
    nest = hvd.shard({"a": x, "b": (tf.range(20), ragged)})
    assert (nest["b"][0].numpy() == np.arange(20)[rank::size]).all()
    assert nest["b"][1].row_lengths().numpy().tolist() == list(range(20))[rank::size]
    for element in hvd.shard((x, ["a"] * 20), shuffle=True).take(1):
        assert element[0].shape == (2,) and element[1].dtype == tf.string


def _ragged():
    """Rows of any length stay ragged, shuffled too, so that batch() takes them."""
    ragged = tf.ragged.constant([[i] * i for i in range(20)])
    unknown = Dataset.from_tensor_slices({"rows": ragged}).filter(lambda element: True)
    for divided in (
        hvd.shard({"rows": ragged}, shuffle=True, seed=2),
        hvd.shard(Dataset.from_tensor_slices({"rows": ragged}), shuffle=True, seed=2),
        hvd.shard(unknown),
        hvd.shard(unknown, shuffle=True, seed=2),
    ):
        (batch,) = divided.batch(20)
        parts = hvd.allgather_object(batch["rows"].to_list())
        assert sorted(sum(parts, [])) == ragged.to_list()[: len(parts) * (20 // size)], parts


class Pair(tf.experimental.ExtensionType):
    """Of tensors that TensorFlow's windows do not see; as are the graphs of TF-GNN."""

    number: tf.Tensor
    row: tf.RaggedTensor


def _extension_types():
    """Elements of several tensors, alone and in nests, whatever is known of their number."""
    known = Dataset.range(4 * size).map(
        lambda i: {"pair": Pair(i, tf.ragged.range(tf.stack([i, 1]))), "x": (i,)}
    )
    for dataset in (known, known.filter(lambda element: True)):
        divided = hvd.shard(dataset)
        assert divided.element_spec == known.element_spec, divided.element_spec
        own = [(int(e["x"][0]), int(e["pair"].number), e["pair"].row.to_list()) for e in divided]
        parts = sorted(sum(hvd.allgather_object(own), []))
        assert parts == [(i, i, [list(range(i)), [0]]) for i in range(4 * size)], parts


def _what_cannot_be_divided(x):
    def generate():
        yield 1

    for kind, text, data in (
        (TypeError, "from_generator", (i for i in range(9))),
        (TypeError, "from_generator", iter([1, 2])),
        (TypeError, "from_generator", generate),
        (TypeError, "cannot be divided", 3.5),
        (TypeError, "cannot be divided", object()),
        (TypeError, "np.asarray", [[1, 2], [3, 4]]),
        (TypeError, "cannot be divided", tf.sparse.eye(4)),
        (ValueError, "no data", (None, None)),
    ):
        with raises(kind, text):
            hvd.shard(data)
    for seed in (-1, None):
        with raises(ValueError, "same one"):
            hvd.shard(x, shuffle=True, seed=seed)


def forms():
    x = np.arange(40.0).reshape(20, 2)
    _views_and_nests(x)
    _ragged()
    _extension_types()
    _what_cannot_be_divided(x)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hvd.shard(Dataset.range(8).batch(2).prefetch(1))
        assert any("before batch" in str(w.message) for w in caught), caught
        del caught[:]
        hvd.shard(Dataset.range(8).batch(2).unbatch())
        hvd.shard(Dataset.range(8)).batch(2)
        hvd.shard(Dataset.range(8)).shuffle(8)
        hvd.shard(Dataset.range(8).shuffle(8, seed=1))
        hvd.shard(Dataset.range(8), shuffle=True)
        assert not caught, [str(w.message) for w in caught]
    report(done=True)
