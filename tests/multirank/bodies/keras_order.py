"""What ranks do in test_keras_order.py."""

import random
import warnings

import numpy as np
import tensorflow as tf
from checks import raises
from harness import rank, report, size

import smddp_tf.keras as hvd
from smddp_tf.errors import RanksDifferError

keras = tf.keras
Dataset = tf.data.Dataset
N, BATCHES = 1000, 40


def _divided(dataset) -> tuple:
    """How many elements come never, and how many twice, in each of two passes of all ranks."""
    part = hvd.shard(dataset)
    passes = [[int(e) for e in part.as_numpy_iterator()] for _ in range(2)]
    of_ranks = hvd.allgather_object(passes)
    counts = [np.bincount(sum((r[i] for r in of_ranks), []), minlength=N) for i in range(2)]
    wrong = [int((c == 0).sum()) for c in counts] + [int((c > 1).sum()) for c in counts]
    return wrong, passes


def _shuffled_last():
    """shuffle() as the last transformation: all ranks get one seed."""
    whole = Dataset.range(N)
    found = {"unseeded": _divided(whole.shuffle(N))[0]}
    keras.utils.set_random_seed(rank + 1)
    found["own seeds"], passes = _divided(whole.shuffle(N))
    assert passes[0] != passes[1], "the same order in both epochs"
    found["one seed, other global seeds"] = _divided(whole.shuffle(N, seed=3))[0]
    found["small buffer"] = _divided(whole.shuffle(10))[0]
    kept, passes = _divided(whole.shuffle(N, reshuffle_each_iteration=False))
    assert passes[0] == passes[1], "another order in the second epoch"
    found["not reshuffled"] = kept
    keras.utils.set_random_seed(7)
    found["one seed for all"] = _divided(whole.shuffle(N).map(lambda e: e))[0]
    return found


def _refused_datasets():
    keras.utils.set_random_seed(rank + 1)
    whole = Dataset.range(N)
    two = [whole, whole.map(lambda e: e + 1)]
    own = np.random.permutation(N)
    for words, dataset in (
        (("hvd.set_random_seed(seed)",), whole.shuffle(N).map(lambda e: e)),
        (("hvd.set_random_seed(seed)",), Dataset.sample_from_datasets(two)),
        (("hvd.set_random_seed(seed)",), whole.shuffle(9).shuffle(9, seed=2)),
        (("hvd.set_random_seed(seed)",), tf.compat.v1.data.Dataset.range(N).shuffle(9)),
        (("tensor 0", "hvd.set_random_seed(seed)"), Dataset.from_tensor_slices(own)),
        (("tensor 0",), Dataset.from_tensor_slices(own).batch(2).unbatch().shuffle(N)),
        (("number of elements: 5 on rank 0, 6 on rank 1",), Dataset.range(5 + rank)),
    ):
        for shuffle in (False, True):
            with raises(ValueError, *words):
                hvd.shard(dataset, shuffle=shuffle)


def _quietly_accepted():
    """What differs in nothing that matters; and what is warned of."""
    names = [f"/data/{rank}/{i}" for i in range(20)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hvd.shard(Dataset.from_tensor_slices(names))
        hvd.shard(np.array(names))
        hvd.shard(np.arange(N) * (1 + 1e-7 * rank))
        hvd.shard((np.array([1.0, np.nan, np.inf]), None, np.arange(3).astype("datetime64[D]")))
        hvd.shard(tf.ragged.constant([[1] * i for i in range(4)]))
        hvd.shard(Dataset.zip((Dataset.range(9), Dataset.random())))
        if rank == 0:
            alone = hvd.shard(Dataset.range(4).shuffle(4), process_set=FIRST)
            assert len(list(alone)) == 4
        hvd.shard(Dataset.range(9).map(lambda e: e, num_parallel_calls=2))
        assert not caught, [str(w.message) for w in caught]
        hvd.shard(Dataset.range(9).map(lambda e: e, num_parallel_calls=2, deterministic=False))
        assert "deterministic=False" in str(caught[-1].message)


def _refused_arrays():
    np.random.seed(rank)
    own = np.random.permutation(N)
    images = np.zeros((3 * N, 10, 10), "uint8")
    images[:, 5, 5] = np.random.permutation(3 * N) % 251
    for words, data in (
        (("array 0", "hvd.set_random_seed(seed)"), own),
        (("array 1",), (np.arange(N), own.astype("float32"))),
        (("array 1",), {"a": np.arange(N), "b": tf.constant(own)}),
        (("array 0",), images),
        (("array 0",), tf.constant(images)),
        (("array 0",), [f"w{i}" for i in own]),
        (("array 0",), np.arange(9)[rank:]),
    ):
        with raises(ValueError, *words):
            hvd.shard(data)
    with raises(ValueError, "seed: 0 on rank 0, 1 on rank 1"):
        hvd.shard(np.arange(9), shuffle=True, seed=rank)


def datasets_and_arrays():
    global FIRST
    FIRST = hvd.add_process_set([0])
    found = _shuffled_last()
    report(found=found)
    assert all(count == 0 for wrong in found.values() for count in wrong), found
    _refused_datasets()
    _refused_arrays()
    _quietly_accepted()


class Batches(getattr(keras.utils, "PyDataset", None) or keras.utils.Sequence):
    """Batches of one sample, whose number is its first value, in an order of this object's own."""

    def __init__(self, shuffle, anew=False, **options):
        super().__init__(**options)
        self.samples = np.repeat(np.arange(BATCHES, dtype="float32")[:, None], 2, 1)
        self.indexes = np.arange(BATCHES)
        self.shuffle, self.anew = shuffle, anew
        self.on_epoch_end()

    def __len__(self):
        return BATCHES

    def __getitem__(self, i):
        np.random.random(1 + rank)  # augmentation, which draws another number of times on each rank
        one = self.samples[self.indexes[i : i + 1]]
        return one, one[:, 0]

    def on_epoch_end(self):
        if self.anew:
            self.indexes = np.arange(BATCHES)
        self.shuffle(self.indexes)


class Recording(keras.Model):
    """Notes the samples that it is trained on."""

    def train_step(self, data):
        self.ids.extend(int(i) for i in data[0][:, 0])
        return super().train_step(data)


def _fit(batches, epochs=3):
    """How many batches come never, in each epoch, on all ranks together."""
    ids, marks = [], [0]
    inputs = keras.Input((2,))
    model = Recording(inputs, keras.layers.Dense(1)(inputs))
    object.__setattr__(model, "ids", ids)  # Keras would keep a copy
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(1e-9)), "mse", run_eagerly=True)
    mark = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: marks.append(len(ids)))
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(hvd.shard(batches), epochs=epochs, verbose=0, callbacks=[mark, broadcast])
    own = [ids[start:stop] for start, stop in zip(marks, marks[1:], strict=False)]
    of_ranks = hvd.allgather_object(own)
    orders = {tuple(sum((r[i] for r in of_ranks), [])) for i in range(epochs)}
    assert len(orders) == epochs, "the same order in each epoch"
    return [BATCHES - len(set(sum((r[i] for r in of_ranks), []))) for i in range(epochs)]


def sequences():
    np.random.seed(rank)
    random.seed(rank)
    own = np.random.default_rng(rank)
    found = {
        "numpy": _fit(Batches(_not_at_first(np.random.shuffle))),
        "numpy, anew": _fit(Batches(np.random.shuffle, anew=True)),
        "random": _fit(Batches(random.shuffle, anew=True)),
        "own generator, one seed": _fit(Batches(np.random.default_rng(5).shuffle)),
    }
    if hasattr(keras.utils, "PyDataset"):
        found["threads"] = _fit(Batches(_not_at_first(np.random.shuffle), workers=2))
    report(found=found)
    assert not any(sum(found.values(), [])), found
    before = np.random.get_state()[1].tolist(), random.getstate()
    part = hvd.shard(Batches(lambda indexes: None))
    part.on_epoch_end()
    assert before == (np.random.get_state()[1].tolist(), random.getstate())
    for shuffle in (own.shuffle, np.random.shuffle):  # not the same order to begin with
        with raises(ValueError, "attribute indexes", "hvd.set_random_seed(seed)"):
            hvd.shard(Batches(shuffle))
    # Equal in the first epoch, and then shuffled by a generator of each rank.
    with raises(RanksDifferError, "in epoch 2", "attribute indexes of Batches"):
        _fit(Batches(_not_at_first(own.shuffle)))
    given = Batches(lambda indexes: None)
    given.samples = given.samples[np.random.permutation(BATCHES)]
    with raises(ValueError, "attribute samples"):
        hvd.shard(given)
    assert size == 2


def _not_at_first(shuffle):
    calls = []

    def later(indexes):
        calls.append(1)
        if len(calls) > 1:
            shuffle(indexes)

    return later


def evaluated():
    """evaluate() and predict() divide too."""
    inputs = keras.Input((1,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    own = np.random.RandomState(rank).permutation(N).astype("float32")[:, None]
    for call in (
        lambda: hvd.predict(model, own, verbose=0),
        lambda: hvd.evaluate(model, own, own, verbose=0),
        lambda: hvd.predict(model, Dataset.from_tensor_slices(own).batch(50), verbose=0),
    ):
        with raises(ValueError, "different data"):
            call()
    report(done=True)


def _shuffled_inside(seed=None):
    """A shuffle in the function of interleave(), as of the lines of files."""
    files = Dataset.range(10)

    def lines(i):
        return Dataset.range(i * 100, i * 100 + 100).shuffle(100, seed=seed)

    return files.interleave(lines, cycle_length=2)


def _within_a_function():
    """The same, in a function that the function calls, behind a map."""

    @tf.function
    def own(i):
        return Dataset.range(i, i + 1).shuffle(2).reduce(tf.constant(0, tf.int64), lambda _, e: e)

    chosen = Dataset.range(N).filter(lambda i: own(i) >= 0)
    return chosen.map(lambda i: i)


def _some(seed=None):
    return Dataset.range(N).filter(lambda i: tf.random.uniform([], seed=seed) < 0.9)


def _some_by_number():
    def chosen(i, element):
        return tf.random.stateless_uniform([], tf.stack([3, i])) < 0.9

    return Dataset.range(N).enumerate().filter(chosen).map(lambda i, element: element)


def _resampled():
    classes = Dataset.range(N).map(lambda i: i % 2)
    return classes.rejection_resample(lambda c: tf.cast(c, tf.int32), [0.2, 0.8], [0.5, 0.5])


def _augmented():
    """Random numbers that are elements, also where a function makes the dataset."""

    def noisy(i):
        return Dataset.range(i, i + 1).map(lambda e: e + 0 * tf.random.uniform([], 0, 2, tf.int64))

    whole = Dataset.range(N).map(lambda e: e + 0 * tf.random.uniform([], 0, 2, tf.int64))
    return whole.flat_map(noisy)


def functions_of_datasets():
    """Ranks whose functions of tf.data shuffle or choose otherwise are told; others are not."""
    remedy = "hvd.set_random_seed(seed)"
    for own_seed in (False, True):
        if own_seed:
            keras.utils.set_random_seed(rank + 1)
        for dataset in (_shuffled_inside(), _within_a_function()):
            with raises(ValueError, "shuffles the dataset", remedy):
                hvd.shard(dataset)
        for dataset in (_some(), _resampled()):
            with raises(ValueError, "chooses other elements", "call shard() before", "stateless"):
                hvd.shard(dataset)
    with raises(ValueError, "shuffles the dataset"):
        hvd.shard(_shuffled_inside(seed=3))  # with the ranks' own global seeds
    with raises(ValueError, "in another order on each rank"):
        hvd.predict(keras.Sequential([keras.Input([1])]), _shuffled_inside().batch(4))
    assert _divided(_augmented())[0] == [0, 0, 0, 0]
    hvd.set_random_seed(5)
    found = {"shuffled inside": _divided(_shuffled_inside())[0], "in a map": None}
    found["in a map"] = _divided(_augmented())[0]
    assert all(wrong == [0, 0, 0, 0] for wrong in found.values()), found
    with raises(ValueError, "chooses other elements"):
        hvd.shard(_some(seed=1))
    twice = _divided(_some_by_number())[0][2:]
    assert twice == [0, 0], twice
    hvd.shard(hvd.shard(Dataset.range(8), shuffle=True))
    report(done=True)
