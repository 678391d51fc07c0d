"""A custom loop as Horovod's documentation shows it."""

import sys

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

hvd.init()
gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

images = np.random.RandomState(hvd.rank()).rand(256, 8, 8, 1).astype("float32")
labels = (images.sum((1, 2, 3)) > 32).astype("int64")
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).repeat().batch(32)

mnist_model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(4, [3, 3], activation="relu"),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(2, activation="softmax"),
    ]
)
loss = tf.losses.SparseCategoricalCrossentropy()
opt = tf.optimizers.Adam(0.001 * hvd.size())


@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        probs = mnist_model(images, training=True)
        loss_value = loss(labels, probs)
    # Horovod: add Horovod Distributed GradientTape.
    tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss_value, mnist_model.trainable_variables)
    opt.apply_gradients(zip(grads, mnist_model.trainable_variables))
    return loss_value


for batch, (images, labels) in enumerate(dataset.take(40 // hvd.size())):
    loss_value = training_step(images, labels, batch == 0)
    if batch == 0:
        variables = opt.variables() if callable(opt.variables) else opt.variables
        hvd.broadcast_variables(mnist_model.variables, root_rank=0)
        hvd.broadcast_variables(variables, root_rank=0)
    if batch % 10 == 0 and hvd.rank() == 0:
        print("Step #%d\tLoss: %.6f" % (batch, loss_value))

flat = np.concatenate([v.numpy().ravel() for v in mnist_model.trainable_variables])
low = hvd.allreduce(flat, op=hvd.mpi_ops.Min)
high = hvd.allreduce(flat, op=hvd.Max)
assert hvd.mpi_built() and not hvd.gloo_enabled()
from horovod.common.util import is_version_greater_equal_than  # noqa: E402

assert is_version_greater_equal_than(tf.__version__, "2.6.0")
print("rank", hvd.rank(), "equal", bool(np.all(low == high)), "arguments", sys.argv[1:])
