"""What ranks do in test_order.py inside fit()."""

import numpy as np
import tensorflow as tf
from harness import rank, report

import smddp_tf.keras as hvd

keras = tf.keras


class Gan(keras.Model):
    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
        self.discriminator = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        self.entropy = keras.losses.BinaryCrossentropy(from_logits=True)

    def call(self, noise):
        return self.discriminator(self.generator(noise))

    def compile(self, generator_optimizer, discriminator_optimizer):
        super().compile()
        self.generator_optimizer = generator_optimizer
        self.discriminator_optimizer = discriminator_optimizer

    def train_step(self, data):
        noise, images = data
        with tf.GradientTape() as tape:
            fake = self(noise)
            loss = self.entropy(tf.ones_like(fake), fake)
        weights = self.generator.trainable_variables
        grads = tape.gradient(loss, weights)
        self.generator_optimizer.apply_gradients(zip(grads, weights, strict=True))
        with tf.GradientTape() as tape:
            real, fake = self.discriminator(images), self(noise)
            loss = self.entropy(tf.ones_like(real), real)
            loss += self.entropy(tf.zeros_like(fake), fake)
        weights = self.discriminator.trainable_variables
        grads = tape.gradient(loss, weights)
        self.discriminator_optimizer.apply_gradients(zip(grads, weights, strict=True))
        return {"loss": loss}


def _optimizer():
    return hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), backward_passes_per_step=2)


def a_gan_with_accumulation():
    keras.utils.set_random_seed(3)
    gan = Gan()
    gan.compile(_optimizer(), _optimizer())
    values = np.random.default_rng(rank)
    noise = values.normal(size=(24, 3)).astype("float32")
    images = values.normal(size=(24, 4)).astype("float32")
    before = [one.numpy() for one in gan.trainable_variables]
    gan.fit(noise, images, batch_size=4, epochs=2, verbose=0)
    weights = np.concatenate([one.numpy().ravel() for one in gan.trainable_variables])
    assert not np.allclose(weights, np.concatenate([one.ravel() for one in before]))
    gathered = hvd.allgather(tf.constant(weights[None])).numpy()
    assert (gathered == gathered[0]).all(), "the ranks have different weights"
    report(done=True)
