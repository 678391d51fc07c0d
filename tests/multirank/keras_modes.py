"""The equality test of Keras training, in every mode; run on each rank by test_keras.py.

A mode trains one model in a single process on whole batches, and the same model distributed on
this rank's parts of them. The ranks divide the single process's trainings among them. Before the
broadcast each rank's weights are different. Afterwards all ranks must hold the same bits, and they
must be the single process's up to rounding.
"""

import contextlib
import hashlib

import numpy as np
import tensorflow as tf

import smddp_tf.keras as hvd

keras = tf.keras
KERAS3 = not hasattr(keras.optimizers.Optimizer, "aggregate_gradients")
BATCH, BATCHES, FEATURES, CLASSES = 24, 6, 12, 5

# The gradient of half a batch is rounded elsewhere than that of the whole one: up to about 8 units
# in the last place (2^-23) of gradients that are at most 1, times the rate 0.1, in 12 steps, and
# twice that with momentum. Adam divides by the gradient's own size, so small gradients show more.
TOLERANCE = 2.5e-6
ADAM_TOLERANCE = 5e-5

rng = np.random.RandomState(7)
X = rng.randn(BATCH * BATCHES, FEATURES).astype("float32")
IDS = rng.randint(0, 40, (BATCH * BATCHES, 6))
Y = rng.randint(0, CLASSES, BATCH * BATCHES)


def local_slice(count=1):
    """Indices of this rank's part of every (count-fold) batch, in order."""
    batch, part = BATCH * count, BATCH * count // hvd.size()
    starts = [b * batch + hvd.rank() * part for b in range(len(Y) // batch)]
    return np.concatenate([np.arange(start, start + part) for start in starts])


def dense_model():
    inputs = keras.Input((FEATURES,))
    hidden = keras.layers.Dense(16, activation="tanh")(inputs)
    return keras.Model(inputs, keras.layers.Dense(CLASSES)(hidden))


def shared_and_frozen_model():
    inputs = keras.Input((FEATURES,))
    twice = keras.layers.Dense(FEATURES, activation="tanh")
    frozen = keras.layers.Dense(FEATURES, activation="tanh", trainable=False)
    return keras.Model(inputs, keras.layers.Dense(CLASSES)(twice(frozen(twice(inputs)))))


def two_outputs_model():
    inputs = keras.Input((FEATURES,))
    hidden = keras.layers.Dense(8, activation="tanh")(inputs)
    return keras.Model(
        inputs, [keras.layers.Dense(CLASSES)(hidden), keras.layers.Dense(CLASSES)(hidden)]
    )


def embedding_model():
    inputs = keras.Input((6,), dtype="int32")
    rows = keras.layers.Embedding(40, 8)(inputs)
    return keras.Model(inputs, keras.layers.Dense(CLASSES)(keras.layers.Flatten()(rows)))


def float8_model():
    model = dense_model()
    model.quantize("float8")
    return model


class Deferred(keras.Model):
    """Built by its first batch, and with a train_step of its own."""

    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(16, activation="tanh")
        self.out = keras.layers.Dense(CLASSES)

    def call(self, inputs):
        return self.out(self.hidden(inputs))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = loss_object()(y, self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


def loss_object():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def sgd(**options):
    return keras.optimizers.SGD(0.1, momentum=0.5, **options)


def every_weight(weight):
    return True


class Mode:
    """What a mode changes. `distribute` are arguments of DistributedOptimizer.

    `reference` and `reference_model` make the single process's optimizer and model, where they are
    not the same ones.
    """

    def __init__(
        self,
        optimizer=sgd,
        model=dense_model,
        inputs=X,
        targets=1,
        tolerance=TOLERANCE,
        reference=None,
        reference_model=None,
        joined=1,
        distribute=None,
        policy=None,
        sample_weight=None,
        compared=every_weight,
        **compile_options,
    ):
        self.optimizer, self.model, self.inputs = optimizer, model, inputs
        self.targets, self.tolerance = targets, tolerance
        self.reference = reference or optimizer
        self.reference_model = reference_model or model
        self.joined = joined  # so many batches of the ranks are one of the single process
        self.distribute = distribute or {}
        self.policy = policy
        self.sample_weight = sample_weight
        self.compared = compared  # whether a weight is that of the single process
        self.compile_options = compile_options

    def make(self, optimizer, seed=3, model=None):
        keras.utils.set_random_seed(seed)
        model = (model or self.model)()
        loss = [loss_object()] * self.targets if self.targets > 1 else loss_object()
        model.compile(optimizer, loss, **self.compile_options)
        return model

    def fit(self, model, rows, batch, callbacks):
        y = Y[rows] if self.targets == 1 else [Y[rows]] * self.targets
        options = {"epochs": 2, "shuffle": False, "verbose": 0, "callbacks": callbacks}
        if self.sample_weight is not None:
            options["sample_weight"] = self.sample_weight[rows]
        model.fit(self.inputs[rows], y, batch_size=batch, **options)

    def alone(self):
        """The weights that a single process ends with; None for one that is not compared."""
        with self._policy():
            model = self.make(self.reference(), model=self.reference_model)
            self.fit(model, np.arange(len(Y)), BATCH * self.joined, [])
        return [np.asarray(w, float) if self.compared(w) else None for w in model.weights]

    def alone_like(self):
        """Equal for modes whose single process does the same."""
        return (
            self.reference,
            self.reference_model,
            self.targets,
            self.joined,
            self.policy,
            id(self.inputs),
            id(self.sample_weight),
            self.compared,
            tuple(sorted(self.compile_options.items())),
        )

    def check(self, name, alone):
        """Trains on all ranks, and compares; returns the largest difference."""
        with self._policy():
            return self._check(name, alone)

    @contextlib.contextmanager
    def _policy(self):
        if self.policy:
            keras.mixed_precision.set_global_policy(self.policy)
        try:
            yield
        finally:
            keras.mixed_precision.set_global_policy("float32")

    def _check(self, name, alone):
        optimizer = hvd.DistributedOptimizer(self.optimizer(), **self.distribute)
        model = self.make(optimizer, seed=3 + hvd.rank())
        broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        rows = local_slice(self.joined)
        if self.joined > 1:  # passes of an update take turns through the joined batch
            rows = rows.reshape(-1, self.joined, BATCH // hvd.size()).reshape(-1)
        self.fit(model, rows, BATCH // hvd.size(), [broadcast])
        assert_equal_on_all_ranks(model, name)
        pairs = [
            (one, np.asarray(other, float))
            for one, other in zip(alone, model.weights, strict=True)
            if one is not None
        ]
        difference = max(float(np.abs(a - b).max()) for a, b in pairs)
        assert difference <= self.tolerance, f"{name}: {difference} > {self.tolerance}"
        moved = max(float(np.abs(w).max()) for w in model.get_weights())
        assert np.isfinite(moved) and moved > 0.01, name
        return difference


def assert_equal_on_all_ranks(model, name):
    data = b"".join(np.ascontiguousarray(w).tobytes() for w in model.get_weights())
    digests = hvd.allgather_object(hashlib.sha256(data).hexdigest())
    assert len(set(digests)) == 1, f"{name}: the ranks' weights differ: {digests}"


def schedule():
    return keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.8)


def legacy(kind, *args, **options):
    return lambda: getattr(keras.optimizers.legacy, kind)(*args, **options)


MODES = {
    "graph": Mode(),
    "steps_per_execution": Mode(steps_per_execution=3),
    "clipnorm": Mode(lambda: sgd(clipnorm=0.05)),
    "clipvalue": Mode(lambda: sgd(clipvalue=0.01)),
    "adam and a schedule": Mode(
        lambda: keras.optimizers.Adam(schedule()), tolerance=ADAM_TOLERANCE
    ),
    "shared and frozen layers": Mode(model=shared_and_frozen_model),
    "two outputs": Mode(model=two_outputs_model, targets=2),
    "sparse": Mode(model=embedding_model, inputs=IDS),
    "sparse as dense": Mode(
        model=embedding_model, inputs=IDS, distribute={"sparse_as_dense": True}
    ),
    "sum": Mode(
        lambda: keras.optimizers.SGD(0.1 / hvd.size(), momentum=0.5),
        reference=sgd,
        distribute={"op": hvd.Sum},
    ),
    "groups and predivide": Mode(distribute={"groups": 2, "gradient_predivide_factor": 2.0}),
    # bfloat16 keeps 8 bits: a relative error of 2^-9 in each of 12 updates of at most 0.1.
    "compression": Mode(tolerance=5e-3, distribute={"compression": hvd.Compression.bf16}),
    "two passes an update, summed": Mode(
        lambda: keras.optimizers.SGD(0.05, momentum=0.5),
        reference=sgd,
        joined=2,
        distribute={"backward_passes_per_step": 2},
    ),
    "two passes an update, mixed_float16": Mode(
        joined=2,
        policy="mixed_float16",
        tolerance=1e-3,
        distribute={"backward_passes_per_step": 2, "average_aggregated_gradients": True},
    ),
}
if KERAS3:
    MODES["gradient_accumulation_steps"] = Mode(
        lambda: sgd(gradient_accumulation_steps=2), reference=sgd, joined=2
    )
    MODES["accumulation with jit and clipping"] = Mode(
        lambda: sgd(gradient_accumulation_steps=2, global_clipnorm=0.05),
        reference=lambda: sgd(global_clipnorm=0.05),
        joined=2,
        jit_compile=True,
    )
    # Its ranges are updated in each pass, so they are not those of a single pass.
    MODES["accumulation with float8"] = Mode(
        lambda: sgd(gradient_accumulation_steps=2),
        model=float8_model,
        reference=sgd,
        joined=2,
        tolerance=5e-3,
        compared=lambda weight: weight.name in ("kernel", "bias"),
    )
else:
    MODES["legacy SGD"] = Mode(legacy("SGD", 0.1, momentum=0.5))
    MODES["legacy Adam with clipping"] = Mode(
        legacy("Adam", 0.01, global_clipnorm=0.05), tolerance=ADAM_TOLERANCE
    )
    MODES["legacy SGD, mixed_float16"] = Mode(
        legacy("SGD", 0.1, momentum=0.5), policy="mixed_float16", tolerance=1e-3
    )
    MODES["legacy SGD, two passes"] = Mode(
        legacy("SGD", 0.1, momentum=0.5),
        joined=2,
        distribute={"backward_passes_per_step": 2, "average_aggregated_gradients": True},
    )


def divided(jobs) -> dict:
    """What each function of `jobs` returns; each is called on one of the ranks."""
    names = list(jobs)[hvd.rank() :: hvd.size()]
    parts = hvd.allgather_object({name: jobs[name]() for name in names})
    return {name: result for part in parts for name, result in part.items()}


def check(modes: dict) -> dict:
    """Checks each; returns its largest difference from the single process."""
    likes = {name: mode.alone_like() for name, mode in modes.items()}
    first = {like: name for name, like in reversed(likes.items())}
    alone = divided({name: modes[name].alone for name in first.values()})
    return {name: mode.check(name, alone[first[likes[name]]]) for name, mode in modes.items()}


def run(names=None) -> dict:
    """Checks MODES, all or those with these names."""
    return check({name: MODES[name] for name in names or MODES})
