"""A loop, or fit(), with Horovod's elastic API as its documentation shows it; slot 1 is killed.

smddprun --alias -np 2 --min-np 2 --host-discovery-script H python horovod_elastic.py loop
"""

import os
import signal
import sys

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

hvd.init()
slot, sizes = os.environ["SMDDP_RENDEZVOUS_SLOT"], []
images = np.random.default_rng(hvd.rank()).random([128, 8, 8], np.float32)
labels = (images.sum((1, 2)) > 32).astype("int64")
dataset = tf.data.Dataset.from_tensor_slices(
    (tf.cast(images[..., tf.newaxis] / 255.0, tf.float32), tf.cast(labels, tf.int64))
)
dataset = dataset.repeat().shuffle(64).batch(16)
model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(4, [3, 3], activation="relu"),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dropout(0.25),
        tf.keras.layers.Dense(2, activation="softmax"),
    ]
)
loss = tf.losses.SparseCategoricalCrossentropy()
rate = 0.001
opt = tf.optimizers.Adam(rate * hvd.size())


def may_die(*place):
    if place == ("1", 7):
        os.kill(os.getpid(), signal.SIGKILL)


@tf.function
def training_step(images, labels, allreduce=True):
    with tf.GradientTape() as tape:
        loss_value = loss(labels, model(images, training=True))
    if allreduce:
        tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss_value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables, strict=True))
    return loss_value


def loop():
    for _, (images, labels) in enumerate(dataset.take(1)):
        training_step(images, labels, allreduce=False)

    @hvd.elastic.run
    def train(state):
        sizes.append(hvd.size())
        start_batch = state.batch
        steps = dataset.skip(state.batch).take(20 // hvd.size())
        for batch_idx, (images, labels) in enumerate(steps):
            state.batch = start_batch + batch_idx
            may_die(slot, state.batch)
            training_step(images, labels)
            state.commit()

    state = hvd.elastic.TensorFlowKerasState(model, opt, batch=0)
    state.register_reset_callbacks([lambda: opt.learning_rate.assign(rate * hvd.size())])
    train(state)
    return state.batch


def fit():
    import horovod.tensorflow.keras as hvd

    optimizer = hvd.DistributedOptimizer(
        opt, backward_passes_per_step=1, average_aggregated_gradients=True
    )
    model.compile(loss=loss, optimizer=optimizer, metrics=["accuracy"])
    model.fit(dataset, steps_per_epoch=1, epochs=1, callbacks=None, verbose=0)
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)

    def on_state_reset():
        state.model.optimizer.learning_rate.assign(rate * hvd.size())
        state.model.fit(dataset, steps_per_epoch=1, epochs=1, callbacks=None, verbose=0)

    state.register_reset_callbacks([on_state_reset])
    callbacks = [
        tf.keras.callbacks.LambdaCallback(
            on_train_batch_begin=lambda batch, logs: may_die(slot, state.epoch * 5 + batch)
        ),
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.CommitStateCallback(state),
    ]

    @hvd.elastic.run
    def train(state):
        sizes.append(hvd.size())
        state.model.fit(
            dataset,
            steps_per_epoch=10 // hvd.size(),
            epochs=3 - state.epoch,
            callbacks=callbacks,
            verbose=0,
        )

    train(state)
    return state.epoch


done = {"loop": loop, "fit": fit}[sys.argv[1]]()
weights = np.concatenate([w.ravel() for w in model.get_weights()])
equal = bool(np.allclose(hvd.allreduce(weights, name="weights"), weights, atol=1e-7))
print(f"slot {slot} sizes {sizes} done {done} equal {equal}")
