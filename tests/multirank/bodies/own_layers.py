"""What ranks do in test_own_layers.py: layers of the script's own that keep more than variables."""

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
from checks import raises
from harness import rank, report

import smddp_tf.keras as hvd
from smddp_tf.errors import RanksDifferError

keras = tf.keras
layers = keras.layers
C = hvd.callbacks
WORDS = ["a", "b", "b", "c"] if rank == 0 else ["c", "c", "a", "d"]
PROBE = [["a"], ["b"], ["c"], ["d"]]


def _same(value) -> bool:
    """Whether all ranks have this value."""
    return len({repr(one) for one in hvd.allgather_object(value)}) == 1


class Frequencies(layers.Layer):
    """Keeps what adapt() computes in all the ways that scripts do."""

    def __init__(self, **options):
        super().__init__(**options)
        self.count, self.words = 0, None
        self.mean, self.spread, self.limits = None, None, {}
        self.bias = self.add_weight(shape=(), initializer="zeros", trainable=False, name="bias")
        self.codes = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, -1.0)
        self.shares = None

    def adapt(self, words):
        self.words, counts = np.unique(words, return_counts=True)
        self.count = len(words)
        self.mean = counts.mean(dtype="float32")
        self.spread = tf.constant(counts.std(), tf.float32)
        self.limits = {"lowest": float(counts.min()), "all": [1, *counts.tolist()]}
        self.bias.assign(float(counts[0]))
        keys = tf.constant(list(self.words))
        self.codes.insert(keys, tf.constant(counts, tf.float32))
        initializer = tf.lookup.KeyValueTensorInitializer(keys, counts.astype("float32") / 4)
        self.shares = tf.lookup.StaticHashTable(initializer, 0.0)

    def call(self, inputs):
        codes = tf.ensure_shape(self.codes.lookup(inputs), inputs.shape)
        known = (codes - self.mean) / (self.spread + 1.0)
        known = known + self.bias + self.shares.lookup(inputs)
        return known + self.limits["lowest"] * self.count + float(len(self.limits["all"]))

    def compute_output_shape(self, input_shape):
        return input_shape


def _model(layer):
    return keras.Sequential([keras.Input((1,), dtype="string"), layer, layers.Dense(1)])


def _fit(model, x, *callbacks):
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.001)), "mse")
    broadcast = C.BroadcastGlobalVariablesCallback(0)
    y = np.zeros((len(x), 1), "float32")
    model.fit(x, y, batch_size=4, epochs=1, verbose=0, callbacks=[broadcast, *callbacks])


def kept_in_fit():
    """Each rank adapts to its own part; functions are traced before training begins."""
    layer = Frequencies()
    layer.adapt(WORDS)
    own = layer(tf.constant(PROBE)).numpy()
    model = _model(layer)
    before = model.predict(tf.constant(PROBE), verbose=0)
    assert not _same(before.tolist()) and not _same(own.tolist())
    _fit(model, tf.constant(PROBE * 2), C.CheckRanksEqual())
    assert np.array_equal(layer(tf.constant(PROBE)).numpy(), hvd.broadcast_object(own, 0))
    report(same=_same(model.predict(tf.constant(PROBE), verbose=0).tolist()))


def given_by_adapt():
    """hvd.adapt() gives what one process has that adapts to the root's data."""
    alone = Frequencies()
    alone.adapt(["a", "b", "b", "c"])
    layer = hvd.adapt(Frequencies(), WORDS if rank == 0 else None)
    want, got = (one(tf.constant(PROBE)).numpy() for one in (alone, layer))
    assert np.array_equal(got, want), (got, want)
    assert list(layer.words) == ["a", "b", "c"] and dict(layer.limits)["lowest"] == 1.0
    dataset = tf.data.Dataset.from_tensor_slices(tf.constant(PROBE)).map(layer)
    assert [one.numpy().tolist() for one in dataset] == want.tolist()
    report(done=True)


class Encoder:
    """Not a thing that can be compared, but one that pickle can send."""

    def __init__(self, words):
        self.order = {word: i for i, word in enumerate(words)}


class Encoding(layers.Layer):
    """Keeps an object, and maybe something that cannot be sent."""

    def __init__(self, sendable=True, **options):
        super().__init__(**options)
        self.sendable, self.encoder = sendable, None

    def adapt(self, words):
        self.encoder = Encoder(words) if self.sendable else (word for word in words)

    def call(self, inputs):
        return inputs


def objects():
    layer = hvd.adapt(Encoding(), WORDS if rank == 0 else None)
    assert layer.encoder.order == {"a": 0, "b": 2, "c": 3}, layer.encoder.order
    with raises(RuntimeError, "failed on rank 0", "generator", "'encoder'"):
        hvd.adapt(Encoding(sendable=False), WORDS if rank == 0 else None)
    report(done=True)


class Scaling(layers.Layer):
    """Has no adapt(): what it keeps was given to it."""

    def __init__(self, factor, **options):
        super().__init__(**options)
        self.factor, self.seed_of_rank = factor, rank

    def call(self, inputs):
        return inputs * self.factor

    def compute_output_shape(self, input_shape):
        return input_shape


class Choosing(layers.Layer):
    """Has something that can be called in its configuration."""

    def __init__(self, choice, **options):
        super().__init__(**options)
        self.choice = choice

    def call(self, inputs):
        return tf.identity(inputs)

    def get_config(self):
        return {**super().get_config(), "choice": self.choice}


FACTOR = tf.constant([1.0 + rank])
SAME = tf.constant([1.0])


def _with_default(x, factor=float(1 + rank)):
    return x * factor


def _through_another(x):
    return _with_factor(x) + SAME


def _with_factor(x):
    return x * FACTOR


@tf.function
def _square(x):
    return x**2


@tf.function
def _cube(x):
    return x**3


def _around(factor):
    return lambda x: x * factor


# A layer that is another one on each rank -> a part of what is said of it.
DIFFERENT = {
    "an array": (lambda: Scaling(np.float32([1 + rank])), "factor of Scaling"),
    "a tensor": (lambda: Scaling(tf.constant([1.0 + rank])), "factor of Scaling"),
    "a default": (lambda: layers.Lambda(_with_default), "factor in _with_default"),
    "a function's": (lambda: layers.Lambda(_through_another), "FACTOR in _with_factor"),
    "a closure": (lambda: layers.Lambda(_around(1.0 + rank)), "factor in <lambda>"),
    "a class": (lambda: Choosing((Mapping, Sequence)[rank]), "choice of Choosing"),
    "a tf.function": (lambda: Choosing((_square, _cube)[rank]), "choice of Choosing"),
    "nothing": (lambda: layers.Lambda(lambda x: x * SAME), None),
    "the same": (lambda: Scaling(np.float32([1])), None),
}


def _said(model) -> list:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hvd.broadcast_variables(model, 0)
    return [str(one.message) for one in caught if "the ranks' layers differ" in str(one.message)]


def compared():
    """Data of layers that have no adapt(), and what functions of Lambda layers use."""
    for name, (make, part) in DIFFERENT.items():
        model = keras.Sequential([keras.Input((1,)), make(), layers.Dense(1)])
        said = _said(model)
        assert len(said) == (part is not None), (name, said)
        assert part is None or part in said[0], (name, said)
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
        check = [C.BroadcastGlobalVariablesCallback(0), C.CheckRanksEqual()]
        x = np.ones((4, 1), "float32")

        def train(model=model, x=x, check=check):
            model.fit(x, x, verbose=0, callbacks=check)

        if part is None:
            train()
        else:
            with raises(RanksDifferError, part):
                train()
    report(cases=len(DIFFERENT))


class Empty(layers.Layer):
    """Makes its table in adapt(), of a kind that no other rank can make."""

    def adapt(self, words):
        if rank == 0:
            self.table = tf.lookup.experimental.DenseHashTable(
                tf.int64, tf.int64, default_value=-1, empty_key=-2, deleted_key=-3
            )
            self.table.insert(tf.constant([1], tf.int64), tf.constant([2], tf.int64))

    def call(self, inputs):
        return inputs


def refused():
    """On all ranks, by name of layer and attribute."""
    with raises(RanksDifferError, "Empty", "'table'"):
        hvd.adapt(Empty(), [1])
    report(done=True)


class Settings:
    """A dictionary with attributes, as programs write it: another name is a KeyError."""

    def __init__(self, **values):
        vars(self).update(values)

    def __getattr__(self, name):
        return vars(self)[name]


class Anything:
    """Has every attribute, and can be called."""

    def __getattr__(self, name):
        return self

    def __call__(self, *args, **kwargs):
        return self


class Unready:
    """Its properties raise, as long as something has not begun."""

    def _raise(self):
        raise RuntimeError("not yet")

    inner_optimizer = variables = weights = shape = property(_raise)


class Configured(layers.Dense):
    """A layer with such an object, also in its configuration."""

    def __init__(self, settings, **options):
        super().__init__(2, **options)
        self.settings, self.all_settings = settings, {"one": [settings]}
        self.parts = (layers.Activation("linear"), settings)  # in a wrapper of Keras 2's

    def get_config(self):
        return {**super().get_config(), "settings": self.settings}


class Trainer(Settings):
    """Its own method calls fit()."""

    def train(self, model):
        x = np.ones([8, 3], "float32")
        rate = C.LearningRateWarmupCallback(initial_lr=0.1, warmup_epochs=1)
        callbacks = [rate, C.BroadcastGlobalVariablesCallback(0), C.CheckRanksEqual(every=1)]
        callbacks += [C.MetricAverageCallback(), keras.callbacks.EarlyStopping("loss", patience=9)]
        model.fit(x, x[:, :2], batch_size=4, epochs=2, verbose=0, callbacks=callbacks)


def objects_with_any_name():
    """A model, its layers and its optimizer hold objects that nobody may ask for attributes."""
    for settings in (Settings(rate=1), Anything(), Unready()):
        keras.utils.set_random_seed(rank)
        model = keras.Sequential([Configured(settings), layers.Dense(2)])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.1))
        object.__setattr__(model, "settings", settings)
        object.__setattr__(optimizer, "settings", settings)
        model.compile(optimizer, "mse")
        Trainer(settings=settings).train(model)
        hvd.check_ranks_equal(model.variables)
        assert _same([value.tolist() for value in model.get_weights()]), type(settings)
    report()
