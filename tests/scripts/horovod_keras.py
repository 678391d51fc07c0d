"""Keras fit() as Horovod's documentation shows it."""

import os

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

hvd.init()
data = np.random.RandomState(hvd.rank()).rand(192, 16).astype("float32")
labels = (data.sum(1) > 8).astype("int64")
dataset = tf.data.Dataset.from_tensor_slices((data, labels)).repeat().shuffle(100).batch(32)
model = tf.keras.Sequential(
    [tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(2, activation="softmax")]
)
scaled_lr = 0.01 * hvd.size()
opt = tf.optimizers.SGD(scaled_lr, momentum=0.9)
opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=1, average_aggregated_gradients=True)
model.compile(loss=tf.losses.SparseCategoricalCrossentropy(), optimizer=opt, metrics=["accuracy"])
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=3, verbose=1),
]
folder = os.environ["OUTPUT"]
if hvd.rank() == 0:
    callbacks.append(
        tf.keras.callbacks.ModelCheckpoint(os.path.join(folder, "checkpoint-{epoch}.keras"))
    )
verbose = 2 if hvd.rank() == 0 else 0
model.fit(dataset, steps_per_epoch=12 // hvd.size(), callbacks=callbacks, epochs=4, verbose=verbose)
weights = np.concatenate([w.ravel() for w in model.get_weights()])
mean = hvd.allreduce(weights, name="weights")
print("rank", hvd.rank(), "equal", bool(np.allclose(mean, weights, atol=1e-7)))
