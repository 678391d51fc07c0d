"""What ranks do in test_random_trainings.py: train as options say that are drawn at random.

Each training is also made by one process that has all ranks' rows. Numbers are float64, so that
rounding is far below what an option does. What is known to differ is not drawn: a rule that is not
linear in the gradients (clipping, averages, decay) where ranks first step alone (sync_every), and
optimizers that treat rows of a table apart where the table is reduced (jit, sparse_as_dense).
"""

import contextlib
import pathlib
import random

import numpy as np
import tensorflow as tf
from harness import rank, report, size

import smddp_tf.keras as hvd

keras = tf.keras
layers = keras.layers
KERAS3 = hasattr(keras, "Variable")
OPTIMIZERS = ["SGD", "Adam", "AdamW", "Adamax", "RMSprop", "Adagrad", "Adadelta", "Ftrl"]
OPTIMIZERS += ["Adafactor", "Nadam", "Lamb"] if KERAS3 else ["Adafactor"]
HAVE_EPSILON = set(OPTIMIZERS) - {"SGD", "Ftrl", "Adafactor"}
STEPS, ROWS = 5, 3


class Scale(layers.Layer):
    """Has a scalar, weights that no gradient reaches, and a count that is not trained."""

    def build(self, shape):
        """Makes them."""
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")
        self.unused = self.add_weight(shape=(50,), initializer="ones", name="unused")
        self.count = self.add_weight(shape=(), trainable=False, initializer="zeros", name="count")
        super().build(shape)

    def call(self, x):
        """Uses one of them."""
        return x * self.scale


def drawn(seed: int) -> dict:
    """The options of one training, equal on all ranks."""
    draw = random.Random(seed)

    def maybe(share, *choices):
        return draw.choice(choices or (True,)) if draw.random() < share else None

    o = {"seed": seed, "model": draw.choice(["dense", "table", "image", "sequence", "scaled"])}
    o["how"] = draw.choice(["fit", "fit", "loop", "batches"])
    o["way"] = draw.choice(["graph", "graph", "jit", "eager"])
    o["several"] = maybe(0.4, 2, 3) if o["how"] == "fit" and o["way"] != "eager" else None
    o["optimizer"] = draw.choice(OPTIMIZERS)
    o["clip"] = maybe(0.4, "clipnorm", "clipvalue", "global_clipnorm")
    o["average"] = maybe(0.3, 2, 100)
    o["decay"], o["schedule"], o["frozen"] = maybe(0.3), maybe(0.3), maybe(0.25)
    o["regularizer"], o["constraint"] = maybe(0.3), maybe(0.2)
    o["passes"] = maybe(0.3, 2, 3) if KERAS3 else None
    o["weights"], o["phase"] = maybe(0.3), maybe(0.3, "file", "freeze")
    o["hvd"] = {
        "bucket_bytes": maybe(0.4, 8, 200) or 0,
        "num_groups": maybe(0.3, 1, 3) or 0,
        "gradient_predivide_factor": maybe(0.3, 2.0) or 1.0,
        "shard_state": bool(maybe(0.4)),
        "sparse_as_dense": bool(maybe(0.3)),
    }
    if maybe(0.1):
        o |= dict.fromkeys(["clip", "average", "decay", "schedule", "constraint", "passes"])
        o |= {"optimizer": "plain", "hvd": {"sync_every": 1, "fragments": 1}}
    dense = o["way"] == "jit" or o["hvd"].get("sparse_as_dense")
    if o["model"] == "table" and dense:
        o |= {"optimizer": "plain", "clip": None, "average": None, "passes": None}
    if o["phase"] == "file":
        o["passes"] = None  # a file has the sums of one rank
    if o["how"] != "fit" and o["phase"] == "file":
        o["phase"] = None
    return o


def _model(o):
    keras.utils.set_random_seed(o["seed"])
    draw = random.Random(o["seed"])
    more = {
        "kernel_regularizer": keras.regularizers.L2(0.01) if o["regularizer"] else None,
        "kernel_constraint": keras.constraints.MaxNorm(1.0) if o["constraint"] else None,
    }
    shape = {"image": (6, 6, 1), "sequence": (4, 3), "table": (5,)}.get(o["model"], (7,))
    x = inputs = keras.Input(shape, dtype="int32" if o["model"] == "table" else None)
    if o["model"] == "table":
        x = layers.GlobalAveragePooling1D()(layers.Embedding(11, 4)(x))
    if o["model"] == "image":
        x = layers.Flatten()(layers.Conv2D(3, 3, activation="tanh", **more)(x))
    if o["model"] == "sequence":
        x = draw.choice([layers.LSTM, layers.GRU])(5)(x)
    if o["model"] == "scaled":
        x = Scale()(x)
    x = layers.Dense(draw.randint(2, 7), activation="tanh", **more)(x)
    model = keras.Model(inputs, layers.Dense(2)(x))
    if o["frozen"]:
        next(one for one in model.layers if one.weights).trainable = False
    return model


def _optimizer(o, distributed):
    name = o["optimizer"]
    rate = 0.05
    if o["schedule"]:
        rate = keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.7)
    more = {"epsilon": 1e-3} if name in HAVE_EPSILON else {}
    if name == "SGD":
        more = {"momentum": 0.9, "nesterov": True}
    if o["clip"]:
        more[o["clip"]] = 0.05
    if o["average"]:
        more |= {"use_ema": True, "ema_momentum": 0.7, "ema_overwrite_frequency": o["average"]}
    if o["decay"]:
        more["weight_decay"] = 0.02
    if o["passes"] and not distributed:
        more["gradient_accumulation_steps"] = o["passes"]
    optimizer = getattr(keras.optimizers, "SGD" if name == "plain" else name)(rate, **more)
    if not distributed:
        return optimizer
    options = dict(o["hvd"])
    if "sync_every" in options:
        options["outer_optimizer"] = keras.optimizers.SGD(1.0)
    if o["passes"]:
        options |= {"backward_passes_per_step": o["passes"], "average_aggregated_gradients": True}
    return hvd.DistributedOptimizer(optimizer, **options)


def _rows(o, model, distributed, phase):
    """Inputs, targets and weights: of all ranks, or this rank's part of each batch."""
    numbers = np.random.RandomState(100 * o["seed"] + phase)
    shape = (STEPS, size * ROWS, *model.input_shape[1:])
    x = numbers.randn(*shape)
    if o["model"] == "table":
        x = numbers.randint(0, 11, shape)
    y, weights = numbers.randn(*shape[:2], 2), numbers.uniform(0.5, 2, shape[:2])
    own = slice(rank * ROWS, (rank + 1) * ROWS) if distributed else slice(None)
    return x[:, own], y[:, own], weights[:, own]


def _loop(o, model, optimizer, x, y):
    if not getattr(optimizer, "built", False):
        optimizer.build(model.trainable_variables)

    def step(inputs, targets):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(inputs, training=True) - targets))
            loss += sum(model.losses) if model.losses else 0.0
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    if o["way"] != "eager":
        step = tf.function(step, jit_compile=o["way"] == "jit")
    for inputs, targets in zip(x, y, strict=True):
        step(tf.constant(inputs), tf.constant(targets))


def _train(o, model, distributed, phase):
    x, y, weights = _rows(o, model, distributed, phase)
    if o["how"] == "loop":
        return _loop(o, model, model.own_optimizer, x, y)
    weights = weights if o["weights"] else [None] * STEPS
    if o["how"] == "batches":
        for inputs, targets, weight in zip(x, y, weights, strict=True):
            model.train_on_batch(inputs, targets, sample_weight=weight)
        return None
    more = {"sample_weight": np.concatenate(weights)} if o["weights"] else {}
    if distributed:
        more["callbacks"] = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    more |= {"batch_size": x.shape[1], "shuffle": False, "verbose": 0}
    return model.fit(np.concatenate(x), np.concatenate(y), **more)


def _prepare(o, model, distributed):
    optimizer = _optimizer(o, distributed)
    if o["how"] == "loop":
        model.own_optimizer = optimizer
        return
    way = {"run_eagerly": o["way"] == "eager", "jit_compile": o["way"] == "jit"}
    model.compile(optimizer, "mse", steps_per_execution=o["several"] or 1, **way)


def _from_file(o, model, distributed, folder):
    """The model as it is in a file, with its optimizer."""
    custom = {"Scale": Scale}
    path = str(pathlib.Path(folder, f"{o['seed']}.{'all' if distributed else rank}.keras"))
    divided = distributed and o["hvd"].get("shard_state")
    with hvd.whole_state(model.optimizer) if divided else contextlib.nullcontext():
        if rank == 0 or not distributed:
            model.save(path)
    if not distributed:
        return keras.models.load_model(path, custom_objects=custom)
    hvd.barrier()
    return hvd.load_model(path, custom_objects=custom)


def _trained(o, distributed, folder):
    """The weights after two phases; before the first one ranks have weights of their own."""
    keras.backend.clear_session()
    model = _model(o)
    if distributed and o["how"] == "fit":
        model.set_weights([one + rank for one in model.get_weights()])
    _prepare(o, model, distributed)
    _train(o, model, distributed, 0)
    if o["phase"] == "file" and o["hvd"].get("sync_every") is None:
        model = _from_file(o, model, distributed, folder)
    if o["phase"] == "freeze":
        model.layers[-1].trainable = False
        _prepare(o, model, distributed)
    _train(o, model, distributed, 1)
    return [np.asarray(one) for one in model.get_weights()]


def trainings(first: int, count: int, folder: str, fixed: dict):
    """Each has the weights of one process; `fixed` are options that are not drawn."""
    keras.backend.set_floatx("float64")
    wrong = []
    for seed in range(first, first + count):
        o = drawn(seed) | fixed
        try:
            want, got = (_trained(o, distributed, folder) for distributed in (False, True))
        except Exception as error:
            raise AssertionError(f"training {o}") from error
        differences = [np.abs(a - b).max(initial=0) for a, b in zip(want, got, strict=True)]
        if not max(differences) < 1e-7:
            wrong.append((o, differences))
    assert not wrong, wrong
    report(ran=count)
