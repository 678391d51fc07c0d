"""The data and the model of the storm's training, and the same in one process, by NumPy."""

import numpy as np

BATCH, BATCHES = 12, 20  # all numbers of ranks up to 4 divide a batch
COUNT = BATCH * BATCHES
RATE, MOMENTUM = 0.05, 0.5


def data() -> tuple:
    """(x [COUNT, 5], y [COUNT, 1]), float32."""
    x = np.random.default_rng(5).normal(size=[COUNT, 5]).astype("float32")
    return x, np.sin(x.sum(1, keepdims=True))


def initial() -> list:
    """The weights that the training begins with: two dense layers."""
    generator = np.random.default_rng(7)
    shapes = [5, 3], [3], [3, 1], [1]
    return [generator.normal(size=shape, scale=0.3).astype("float32") for shape in shapes]


def sums(epochs: int) -> list:
    """Of each sample, counted once an epoch: how many, their numbers, the squares of these."""
    every = np.arange(COUNT)
    return [epochs * int(values.sum()) for values in (np.ones_like(every), every, every**2)]


def trained(epochs: int) -> list:
    """The weights of one process after so many epochs; samples come as Samples shuffles them."""
    x, y = data()
    weights = initial()
    speeds = [np.zeros_like(weight) for weight in weights]
    for epoch in range(epochs):
        order = np.random.default_rng([0, epoch]).permutation(COUNT)
        for batch in order.reshape(BATCHES, BATCH):
            gradients = _gradients(weights, x[batch], y[batch])
            for weight, speed, gradient in zip(weights, speeds, gradients, strict=True):
                speed *= np.float32(MOMENTUM)
                speed -= np.float32(RATE) * gradient
                weight += speed
    return weights


def _gradients(weights, x, y) -> list:
    """Of the mean squared error."""
    kernel, bias, out, offset = weights
    hidden = np.tanh(x @ kernel + bias)
    error = (hidden @ out + offset - y) * np.float32(2 / len(x))
    inner = (error @ out.T) * (1 - hidden**2)
    return [x.T @ inner, inner.sum(0), hidden.T @ error, error.sum(0)]
