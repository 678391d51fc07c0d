"""A custom loop as SageMaker's documentation shows it."""

import numpy as np
import smdistributed.dataparallel.tensorflow as sdp
import tensorflow as tf

sdp.init()
gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[sdp.local_rank()], "GPU")

images = np.random.RandomState(sdp.rank()).rand(256, 16).astype("float32")
labels = (images.sum(1) > 8).astype("int64")
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).repeat().shuffle(100).batch(32)
model = tf.keras.Sequential(
    [tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(2, activation="softmax")]
)
loss = tf.losses.SparseCategoricalCrossentropy()
opt = tf.optimizers.SGD(0.01 * sdp.size(), momentum=0.9)
model.build((None, 16))
opt.build(model.trainable_variables)


@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        probs = model(images, training=True)
        loss_value = loss(labels, probs)
    tape = sdp.DistributedGradientTape(tape)
    grads = tape.gradient(loss_value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    if first_batch:
        sdp.broadcast_variables(model.variables, root_rank=0)
        sdp.broadcast_variables(
            opt.variables() if callable(opt.variables) else opt.variables, root_rank=0
        )
    loss_value = sdp.oob_allreduce(loss_value)
    return loss_value


for batch, (images, labels) in enumerate(dataset.take(40 // sdp.size())):
    loss_value = training_step(images, labels, batch == 0)
    if batch % 10 == 0 and sdp.rank() == 0:
        print("Step #%d\tLoss: %.6f" % (batch, loss_value))

grads = [tf.ones([3]) * (sdp.rank() + 1.0), None, tf.ones([2])]
reduced = [
    sdp.allreduce(grad=g, param_index=i, num_params=len(grads), compression=sdp.Compression.fp16)
    if g is not None
    else None
    for i, g in enumerate(grads)
]
assert np.allclose(reduced[0], (sdp.size() + 1) / 2), reduced
sums = sdp.oob_allreduce([1.0 * sdp.rank(), 2.0], op=sdp.ReduceOp.SUM)
assert float(sums[1]) == 2.0 * sdp.size()
weights = np.concatenate([v.numpy().ravel() for v in model.trainable_variables])
mean = sdp.oob_allreduce(tf.constant(weights))
try:
    sdp.init()
    again = "accepted"
except RuntimeError as error:
    again = str(error)
print("rank", sdp.rank(), "equal", bool(np.allclose(mean, weights, atol=1e-7)), again)
