"""Models without Keras, so that every TensorFlow runs the same.

Each is a function that returns (forward, variables, shape of one input).
"""

import math

import tensorflow as tf


def _weight(shape, seed):
    """He initialisation, the same on all ranks and in all runs."""
    spread = math.sqrt(2.0 / math.prod(shape[:-1]))
    return tf.Variable(spread * tf.random.stateless_normal(shape, seed=[seed, 11]))


def _dense_stack(widths):
    variables = []
    for seed, shape in enumerate(zip(widths[:-1], widths[1:], strict=True)):
        variables += [_weight(shape, seed), tf.Variable(tf.zeros([shape[1]]))]
    return variables


def cnn():
    """1.2 million parameters on 28x28 images: compute weighs more than bytes."""
    kernels = [_weight([3, 3, 1, 32], 20), _weight([3, 3, 32, 64], 21)]
    biases = [tf.Variable(tf.zeros([32])), tf.Variable(tf.zeros([64]))]
    head = _dense_stack([9216, 128, 10])

    def forward(images):
        x = images
        for kernel, bias in zip(kernels, biases, strict=True):
            x = tf.nn.relu(tf.nn.conv2d(x, kernel, strides=1, padding="VALID") + bias)
        x = tf.nn.max_pool2d(x, ksize=2, strides=2, padding="VALID")
        x = tf.nn.relu(tf.reshape(x, [-1, 9216]) @ head[0] + head[1])
        return x @ head[2] + head[3]

    return forward, [kernels[0], biases[0], kernels[1], biases[1], *head], (28, 28, 1)


def mlp():
    """20 million parameters in six tensors: bytes weigh as much as compute."""
    variables = _dense_stack([784, 4096, 4096, 10])

    def forward(x):
        for layer in range(0, len(variables), 2):
            if layer:
                x = tf.nn.relu(x)
            x = x @ variables[layer] + variables[layer + 1]
        return x

    return forward, variables, (784,)


def deep():
    """200 thin layers, 400 tensors of at most 16 KiB: latency is all that counts."""
    variables = _dense_stack(201 * [64])
    step = 1 / 200  # so that neither values nor gradients grow with the depth

    def forward(x):
        for layer in range(0, len(variables), 2):
            x = x + step * tf.nn.relu(x @ variables[layer] + variables[layer + 1])
        return x[:, :10]

    return forward, variables, (64,)


MODELS = {"cnn": cnn, "mlp": mlp, "deep": deep}
