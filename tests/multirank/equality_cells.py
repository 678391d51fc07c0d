"""The cells of equality.py, run by every rank of a Keras job."""

import functools

import equality
import keras_modes
import numpy as np
import tensorflow as tf
from keras_modes import ADAM_TOLERANCE, KERAS3, Mode, keras, sgd

import smddp_tf.keras as hvd

_NORMALIZED = keras.layers.BatchNormalization
# tf_keras's fused kernel computes the variance in another way.
_WHOLE = {} if KERAS3 else {"fused": False}


def _normalized_model(layer, **options):
    def make():
        inputs = keras.Input((keras_modes.FEATURES,))
        hidden = keras.layers.Dense(16, activation="tanh")(inputs)
        hidden = layer(**options)(hidden)
        return keras.Model(inputs, keras.layers.Dense(keras_modes.CLASSES)(hidden))

    return make


def _recurrent_model():
    inputs = keras.Input((keras_modes.FEATURES,))
    steps = keras.layers.Reshape((4, keras_modes.FEATURES // 4))(inputs)
    return keras.Model(inputs, keras.layers.Dense(keras_modes.CLASSES)(keras.layers.LSTM(8)(steps)))


class _Penalty(keras.layers.Layer):
    """Adds the mean square of its inputs to the loss."""

    def call(self, inputs):
        self.add_loss(0.1 * tf.reduce_mean(tf.square(inputs)))
        return inputs


def _penalized_model():
    inputs = keras.Input((keras_modes.FEATURES,))
    hidden = _Penalty()(keras.layers.Dense(16, activation="tanh")(inputs))
    return keras.Model(inputs, keras.layers.Dense(keras_modes.CLASSES)(hidden))


def _adapted_model(quantization=None):
    """Only low-rank additions to the kernels, and the biases, are trained."""
    model = keras_modes.dense_model()
    if quantization:
        model.quantize(quantization)
    for layer in model.layers[1:]:
        layer.enable_lora(2)
    return model


def _averaging():
    return keras.optimizers.AdamW(
        0.01, weight_decay=0.02, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=4
    )


def _mode(feature: str, way: str) -> Mode:
    bound = equality.BOUNDS[feature]
    options = {
        "plain": {},
        "fp16": {"policy": "mixed_float16"},
        "bf16": {"policy": "mixed_bfloat16"},
        "accumulation": {
            "joined": 2,
            "distribute": {"backward_passes_per_step": 2, "average_aggregated_gradients": True},
        },
        "clipping": {"optimizer": lambda: sgd(global_clipnorm=0.05)},
        "sparse": {"model": keras_modes.embedding_model, "inputs": keras_modes.IDS},
        "BatchNorm": {
            "model": _normalized_model(hvd.SyncBatchNormalization),
            "reference_model": _normalized_model(_NORMALIZED, **_WHOLE),
        },
        "EMA": {"optimizer": _averaging},
        "custom train_step": {"model": keras_modes.Deferred},
        "LSTM": {"model": _recurrent_model},
        "sample weights": {"sample_weight": np.linspace(0.5, 2.0, len(keras_modes.Y))},
        "add_loss": {"model": _penalized_model},
        "Lion": {"optimizer": lambda: keras.optimizers.Lion(0.001)},
        "Ftrl": {"optimizer": lambda: keras.optimizers.Ftrl(0.05, l1_regularization_strength=1e-4)},
        "Muon": {"optimizer": lambda: keras.optimizers.Muon(0.01)},
        "LoRA": {"model": _adapted_model},
        "int8": {"model": lambda: _adapted_model("int8")},
        # Gradients of a part's mean loss are larger than the whole's, and so is their range.
        "float8": {
            "model": keras_modes.float8_model,
            "compared": lambda weight: "outputs_grad" not in weight.path,
        },
    }[feature]
    assert feature not in ("EMA", "Ftrl", "Muon") or bound == ADAM_TOLERANCE
    return Mode(tolerance=bound, **options, **equality.WAYS[way])


class Gan(keras.Model):
    """A generator and a discriminator, with an optimizer each."""

    def __init__(self):
        super().__init__()
        features = keras_modes.FEATURES
        self.generator = keras.Sequential(
            [keras.Input((features,)), keras.layers.Dense(features, activation="tanh")]
        )
        self.discriminator = keras.Sequential([keras.Input((features,)), keras.layers.Dense(1)])

    def compile(self, generator_optimizer, discriminator_optimizer, **options):
        super().compile(**options)
        self.generator_optimizer = generator_optimizer
        self.discriminator_optimizer = discriminator_optimizer

    def call(self, rows):
        return self.discriminator(self.generator(rows))

    def train_step(self, data):
        rows, _ = data
        with tf.GradientTape() as one, tf.GradientTape() as other:
            fake, real = self(rows), self.discriminator(rows)
            to_tell = tf.reduce_mean(tf.square(real - 1.0) + tf.square(fake))
            to_fool = tf.reduce_mean(tf.square(fake - 1.0))
        for tape, loss, network, optimizer in (
            (one, to_tell, self.discriminator, self.discriminator_optimizer),
            (other, to_fool, self.generator, self.generator_optimizer),
        ):
            variables = network.trainable_variables
            grads = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(grads, variables, strict=True))
        return {"loss": to_tell}


def _train_gan(way, wrap, rows, batch, callbacks, seed):
    keras.utils.set_random_seed(seed)
    model = Gan()
    model(tf.zeros([1, keras_modes.FEATURES]))
    optimizers = [wrap(sgd()), wrap(sgd())]
    networks = [model.generator, model.discriminator]
    for optimizer, network in zip(optimizers, networks, strict=True):
        optimizer.build(network.trainable_variables)
    model.compile(*optimizers, **equality.WAYS[way])
    x, y = keras_modes.X[rows], keras_modes.Y[rows]
    options = {"epochs": 2, "shuffle": False, "verbose": 0, "callbacks": callbacks}
    model.fit(x, y, batch_size=batch, **options)
    return model


def _gan_alone(way: str) -> list:
    every = np.arange(len(keras_modes.Y))
    model = _train_gan(way, lambda optimizer: optimizer, every, keras_modes.BATCH, [], 3)
    return model.get_weights()


def _gan(way: str, alone: list) -> float:
    broadcast = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    batch = keras_modes.BATCH // hvd.size()
    options = (keras_modes.local_slice(), batch, broadcast, 3 + hvd.rank())
    model = _train_gan(way, hvd.DistributedOptimizer, *options)
    keras_modes.assert_equal_on_all_ranks(model, f"{way}/GAN")
    pairs = list(zip(alone, model.get_weights(), strict=True))
    assert max(float(np.abs(w).max()) for _, w in pairs) > 0.01
    difference = max(float(np.abs(a - b).max()) for a, b in pairs)
    assert difference <= equality.BOUNDS["GAN"], (way, difference)
    return difference


def run(ways, features) -> dict:
    """Way/feature -> the largest difference of a weight; each cell is held to its bound."""
    cells = {f"{way}/{feature}": (way, feature) for way in ways for feature in features}
    gans = {name: way for name, (way, feature) in cells.items() if feature == "GAN"}
    modes = {
        name: _mode(feature, way) for name, (way, feature) in cells.items() if name not in gans
    }
    jobs = {name: mode.alone for name, mode in modes.items()}
    jobs |= {name: functools.partial(_gan_alone, way) for name, way in gans.items()}
    alone = keras_modes.divided(jobs)
    found = {name: mode.check(name, alone[name]) for name, mode in modes.items()}
    return found | {name: _gan(way, alone[name]) for name, way in gans.items()}
