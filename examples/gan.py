"""Two models, two optimizers, one step: mpirun -np 2 --bind-to none python examples/gan.py.

A generator learns to draw digits like scikit-learn's; a discriminator learns to tell them apart.
Each optimizer is wrapped on its own, and each reduces its own gradients.
"""

import argparse

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import smddp_tf.keras as hvd

keras = tf.keras
NOISE = 16


class Gan(keras.Model):
    """A generator and a discriminator, trained in turn."""

    def __init__(self):
        super().__init__()
        layers = keras.layers
        self.generator = keras.Sequential(
            [
                keras.Input((NOISE,)),
                layers.Dense(64, activation="relu"),
                layers.Dense(64, activation="sigmoid"),
            ]
        )
        self.discriminator = keras.Sequential(
            [keras.Input((64,)), layers.Dense(64, activation="relu"), layers.Dense(1)]
        )

    def compile(self, generator_optimizer, discriminator_optimizer):
        """Takes two optimizers."""
        super().compile()
        self.generator_optimizer = generator_optimizer
        self.discriminator_optimizer = discriminator_optimizer
        self.judge = keras.losses.BinaryCrossentropy(from_logits=True)

    def call(self, noise):
        """Draws."""
        return self.generator(noise)

    def train_step(self, real):
        """One step of both."""
        noise = tf.random.normal([tf.shape(real)[0], NOISE])
        with tf.GradientTape() as d_tape, tf.GradientTape() as g_tape:
            drawn = self.generator(noise, training=True)
            says_real = self.discriminator(real, training=True)
            says_drawn = self.discriminator(drawn, training=True)
            d_loss = self.judge(tf.ones_like(says_real), says_real)
            d_loss += self.judge(tf.zeros_like(says_drawn), says_drawn)
            g_loss = self.judge(tf.ones_like(says_drawn), says_drawn)
        for tape, loss, model, optimizer in (
            (d_tape, d_loss, self.discriminator, self.discriminator_optimizer),
            (g_tape, g_loss, self.generator, self.generator_optimizer),
        ):
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"d_loss": d_loss, "g_loss": g_loss}


def main():
    """Trains, and compares what is drawn with what is real."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    args = parser.parse_args()
    hvd.init()
    hvd.set_random_seed(0)  # each rank draws from noise of its own
    images = load_digits().data.astype("float32") / 16
    model = Gan()
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3)),
        hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3)),
    )
    model.fit(
        hvd.shard(images),
        batch_size=32,
        epochs=args.epochs,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.CheckRanksEqual(),
        ],
        verbose=2 if hvd.rank() == 0 else 0,
    )
    drawn = model(tf.random.stateless_normal([500, NOISE], [1, 2])).numpy()
    # How bright each pixel is on the average: a generator that learned nothing has 0.5 all over.
    error = float(np.abs(drawn.mean(0) - images.mean(0)).mean())
    untrained = float(np.abs(0.5 - images.mean(0)).mean())
    same = len(set(hvd.allgather_object(drawn.tobytes()))) == 1
    if hvd.rank() == 0:
        for row in (drawn[0].reshape(8, 8) * 4.99).astype(int):
            print("".join(" .+*#"[value] * 2 for value in row))
        print(f"brightness error={error:.3f}; untrained={untrained:.3f}; ranks agree={same};")


if __name__ == "__main__":
    main()
