"""What ranks do in test_layer_state.py: state of layers that is no variable, or follows from it."""

import gc
import warnings

import numpy as np
import tensorflow as tf
from checks import raises
from harness import OUT, rank, report

import smddp_tf.keras as hvd
from smddp_tf.errors import RanksDifferError

keras = tf.keras
layers = keras.layers
C = hvd.callbacks


def _same(value) -> bool:
    """Whether all ranks have this value."""
    return len({repr(one) for one in hvd.allgather_object(value)}) == 1


def _shard():
    """Rank 0 has small numbers, the others larger ones with another spread."""
    return (np.random.RandomState(rank).randn(32, 3) * (1 + rank) + 40 * rank).astype("float32")


def _fit(model, x, *callbacks):
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    broadcast = C.BroadcastGlobalVariablesCallback(0)
    y = np.zeros((len(x), 1), "float32")
    model.fit(x, y, batch_size=8, epochs=1, verbose=0, callbacks=[broadcast, *callbacks])


def _normalizing():
    return keras.Sequential([keras.Input((3,)), layers.Normalization(), layers.Dense(1)])


def normalization_in_fit():
    model = _normalizing()
    model.layers[0].adapt(_shard())
    x = np.random.RandomState(9).randn(64, 3).astype("float32")
    model.predict(x, verbose=0)  # traced with the rank's own mean
    _fit(model, _shard(), C.CheckRanksEqual())
    differ = np.sum(np.any(hvd.predict(model, x) != model.predict(x, verbose=0), axis=1))
    report(rows=int(differ), same=_same(np.asarray(model.layers[0].mean).tolist()))


class _Around(layers.Layer):
    """A layer with a layer, whose call Keras traces to learn the shape of its output."""

    def __init__(self, **options):
        super().__init__(**options)
        self.inner = layers.Normalization()

    def call(self, inputs):
        return self.inner(inputs)


def normalization_in_a_layer():
    """What Keras traced in vain is nobody's function, so nothing is said of it."""
    gc.disable()  # what was thrown away may still be there
    around = _Around()
    around.inner.adapt(_shard())
    model = keras.Sequential([keras.Input((3,)), around, layers.Dense(1)])
    model.predict(_shard(), verbose=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _fit(model, _shard())
    said = [str(one.message) for one in caught if "had been traced" in str(one.message)]
    report(said=said, same=_same(np.asarray(around.inner.mean).tolist()))


def loaded_on_rank_0():
    path = str(OUT / "all.weights.h5")
    if rank == 0:
        model = _normalizing()
        model.layers[0].adapt(_shard() + 40)
        model.save_weights(path)
    model = _normalizing()
    if rank == 0:
        model.load_weights(path)
    hvd.broadcast_variables(model.variables, 0)
    x = np.full((1, 3), 40.0, "float32")
    report(output=float(model(x)[0, 0]), mean=np.asarray(model.layers[0].mean).tolist())


def _embedding(vocabulary):
    lookup = layers.StringLookup(vocabulary=vocabulary)
    return keras.Sequential(
        [keras.Input((1,), dtype="string"), lookup, layers.Embedding(3, 1), layers.Flatten()]
    )


def vocabularies_in_fit():
    words = ["a", "b"] if rank == 0 else ["b", "a"]
    model = _embedding(words)
    x = tf.constant([[word] for word in "abababab"])
    model.predict(x, verbose=0)  # the table is in a traced function
    _fit(model, x, C.CheckRanksEqual())
    report(predictions=model.predict(x[:2], verbose=0).tolist())


class Case:
    """A layer to adapt, data for rank 0 and other data for the others, and inputs to compare."""

    def __init__(self, make, data, other, inputs, dtype="string", shape=(1,)):
        self.make, self.data, self.other = make, data, other
        self.inputs, self.dtype, self.shape = inputs, dtype, shape

    @property
    def own(self):
        """What a rank adapts to that does not know better."""
        return self.data if rank == 0 else self.other

    def model(self, layer):
        """A model around it."""
        inputs = keras.Input(self.shape, dtype=self.dtype)
        return keras.Model(inputs, layer(inputs))

    def mapped(self, layer):
        """A dataset that has it in a map."""
        return tf.data.Dataset.from_tensor_slices(self.inputs).batch(3).map(layer)


def _numpy(value):
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)


def _of_dataset(dataset):
    return np.concatenate([_numpy(batch) for batch in dataset])


WORDS = [["a"], ["b"], ["b"], ["c"], ["c"], ["c"]]
OTHER_WORDS = [["c"], ["b"], ["b"], ["a"], ["a"], ["a"]]
NUMBERS = np.array([[1], [2], [2], [5], [5], [5]])
OTHER_NUMBERS = np.array([[5], [2], [2], [1], [1], [1]])
FLOATS = np.linspace(0, 1, 20).reshape(-1, 1).astype("float32") ** 2
PROBE = tf.constant([["a"], ["b"], ["c"], ["d"]])


def _text(**options):
    def make():
        return layers.TextVectorization(**options)

    data, other = ["a b b", "b c", "b"], ["c b", "a a b", "a c"]
    return Case(make, data, other, tf.constant([["a b"], ["c d"], ["b"]]))


def _words(**options):
    return Case(lambda: layers.StringLookup(**options), WORDS, OTHER_WORDS, PROBE)


def _floats(make):
    return Case(make, FLOATS, FLOATS * 4 + 1, FLOATS[::3], "float32")


ADAPTED = {
    "Normalization": _floats(layers.Normalization),
    "Discretization": _floats(lambda: layers.Discretization(num_bins=4)),
    "Discretization, one_hot": _floats(
        lambda: layers.Discretization(num_bins=4, output_mode="one_hot")
    ),
    "StringLookup": _words(),
    "StringLookup, multi_hot": _words(output_mode="multi_hot"),
    "StringLookup, masked": _words(mask_token="", num_oov_indices=2),
    "StringLookup, tf_idf": _words(output_mode="tf_idf"),
    "IntegerLookup": Case(
        layers.IntegerLookup, NUMBERS, OTHER_NUMBERS, tf.constant(NUMBERS[::2]), "int64"
    ),
    "TextVectorization": _text(output_sequence_length=3),
    "TextVectorization, tf_idf": _text(output_mode="tf_idf"),
}


def _check_adapt(name, case):
    """hvd.adapt() gives what one process has that adapts to rank 0's data."""
    alone = case.make()
    alone.adapt(case.data)
    want = _numpy(alone(case.inputs))
    layer = hvd.adapt(case.make(), case.data if rank == 0 else None)
    assert np.array_equal(_numpy(layer(case.inputs)), want), name
    assert np.array_equal(_of_dataset(case.mapped(layer)), want), name
    got = case.model(layer).predict(case.inputs, verbose=0)
    assert np.array_equal(got, want), (name, got, want)


def _check_broadcast(name, case):
    """A model whose layer was adapted to shards: its functions too are rank 0's afterwards."""
    layer = case.make()
    layer.adapt(case.own)
    model, mapped = case.model(layer), case.mapped(layer)
    before = model.predict(case.inputs, verbose=0)
    assert not _same(before.tolist()), name
    table = "Lookup" in name or "Text" in name
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hvd.broadcast_variables(model, 0)
    told = [str(one.message) for one in caught if "dataset anew" in str(one.message)]
    want = hvd.broadcast_object(before, 0)
    assert np.array_equal(model.predict(case.inputs, verbose=0), want), name
    assert np.array_equal(_numpy(layer(case.inputs)), want), name
    if table and "tf_idf" not in name:  # in the dataset that was made before, too
        assert np.array_equal(_of_dataset(mapped), want), name
    constant = not table or "tf_idf" in name
    assert bool(told) == (constant and rank != 0), (name, told)
    assert _of_dataset(case.mapped(layer)).tolist() == want.tolist(), name


def adapted_layers():
    for name, case in ADAPTED.items():
        _check_adapt(name, case)
        _check_broadcast(name, case)
    report(cases=len(ADAPTED))


def _features(adapt, data):
    space = keras.utils.FeatureSpace(
        features={
            "float": "float_normalized",
            "word": "string_categorical",
            "number": "integer_categorical",
            "bin": keras.utils.FeatureSpace.float_discretized(num_bins=3),
            "hashed": keras.utils.FeatureSpace.string_hashed(num_bins=4),
        },
        crosses=[("word", "number")],
        crossing_dim=8,
        output_mode="concat",
    )
    adapt(space, None if data is None else tf.data.Dataset.from_tensor_slices(data))
    return space


def _table(words):
    count = len(words)
    return {
        "float": np.arange(count, dtype="float32"),
        "word": words,
        "number": list(range(count)),
        "bin": np.linspace(0, 1, count).astype("float32"),
        "hashed": words,
    }


def feature_space():
    """As wide as rank 0's features, though others saw none, or more."""
    data = _table(["x", "y", "x", "z"])
    alone = _features(lambda space, rows: space.adapt(rows), data)
    rows = {key: tf.constant(value) for key, value in data.items()}
    want = alone(rows).numpy()
    space = _features(hvd.adapt, data if rank == 0 else None)
    assert np.array_equal(space(rows).numpy(), want)
    dataset = tf.data.Dataset.from_tensor_slices(rows).batch(2).map(space)
    assert np.array_equal(_of_dataset(dataset), want)
    model = keras.Model(space.get_inputs(), layers.Dense(1)(space.get_encoded_features()))
    hvd.broadcast_variables(model, 0)
    assert _same(model.predict({k: v[:, None] for k, v in rows.items()}, verbose=0).tolist())
    # Adapted to shards with other numbers of words: an error, and not weights of other shapes.
    own = _features(lambda space, rows: space.adapt(rows), _table(["x", "y", "z"][: 2 + rank]))
    with raises(RanksDifferError, "num_tokens of CategoryEncoding", "hvd.adapt(layer, data)"):
        hvd.broadcast_variables(own, 0)
    report(done=True)


# What each rank makes, and the argument that differs.
CONFIGURED = {
    "salt of Hashing": lambda: layers.Hashing(4, salt=1 + rank),
    "num_bins of HashedCrossing": lambda: layers.HashedCrossing(4 + rank),
    "num_tokens of CategoryEncoding": lambda: layers.CategoryEncoding(4 + rank),
    "scale of Rescaling": lambda: layers.Rescaling(1.0 / (1 + rank)),
    "height of Resizing": lambda: layers.Resizing(8 + rank, 8),
    "width of CenterCrop": lambda: layers.CenterCrop(8, 8 + rank),
    "mean of Normalization": lambda: layers.Normalization(mean=1.0 + rank, variance=1.0),
    "num_oov_indices of StringLookup": lambda: layers.StringLookup(num_oov_indices=1 + rank),
    "standardize of TextVectorization": lambda: layers.TextVectorization(
        standardize=("lower", None)[rank]
    ),
}


def _warned(call) -> list:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in caught if "the ranks' layers differ" in str(one.message)]


def _configurations():
    for what, make in CONFIGURED.items():
        argument, kind = what.split(" of ")
        with raises(RanksDifferError, f"{argument} of {kind}", "on rank 0", "on rank 1"):
            hvd.broadcast_variables([make(), tf.Variable(1.0)], 0)
    boundaries = layers.Discretization(bin_boundaries=[0.5 + rank, 2.0])
    hvd.broadcast_variables([boundaries, tf.Variable(1.0)], 0)
    assert _numpy(boundaries(tf.constant([0.7, 3.0]))).tolist() == [1, 2]
    # Of a random layer, a warning; of names and seeds, no word.
    flip = layers.RandomFlip(("horizontal", "vertical")[rank])
    told = _warned(lambda: hvd.broadcast_variables([flip, tf.Variable(1.0)], 0))
    assert len(told) == 1 and "mode of RandomFlip" in told[0], told
    alike = layers.Dropout(0.5, seed=rank, name=f"dropout_of_{rank}")
    assert not _warned(lambda: hvd.broadcast_variables([alike, tf.Variable(1.0)], 0))


class Rename(keras.callbacks.Callback):
    """Gives rank 1 another vocabulary in the middle of training."""

    def on_epoch_begin(self, epoch, logs=None):
        if rank == 1:
            self.model.layers[0].set_vocabulary(["b", "a"])


def _told_in_fit():
    x = tf.constant([[word] for word in "abababab"])
    with raises(RanksDifferError, "vocabulary of StringLookup", "on rank 1"):
        _fit(_embedding(["a", "b"]), x, Rename(), C.CheckRanksEqual())
    hashing = [keras.Input((1,), dtype="string"), layers.Hashing(3, salt=1 + rank)]
    model = keras.Sequential([*hashing, layers.Embedding(3, 1), layers.Flatten()])
    with raises(RanksDifferError, "salt of Hashing"):
        _fit(model, x)


def _elastic():
    """sync() gives all ranks rank 0's; restore() what the last commit had."""
    model = _normalizing()
    model.layers[0].adapt(_shard())
    state = hvd.elastic.KerasState(model)
    state.sync()
    mean = np.asarray(model.layers[0].mean).tolist()
    assert _same(mean)
    model.layers[0].adapt(_shard() + 7)
    state.restore()
    assert np.asarray(model.layers[0].mean).tolist() == mean
    words = _embedding(["a", "b"] if rank == 0 else ["b", "a"])
    state = hvd.elastic.KerasState(words)
    state.sync()
    words.layers[0].set_vocabulary(["c", "d"])
    state.restore()
    assert [str(one) for one in words.layers[0].get_vocabulary()] == ["[UNK]", "a", "b"]


def differences():
    _configurations()
    _told_in_fit()
    _elastic()
    bad = layers.Normalization() if rank else layers.StringLookup(vocabulary=["a"])
    with raises(RuntimeError, "failed on rank 0"):
        hvd.adapt(bad, WORDS)  # it has a vocabulary
    with raises(TypeError, "a layer that has adapt()"):
        hvd.adapt(_normalizing(), FLOATS)
    report(done=True)
