"""Half precision and XLA: mpirun -np 2 --bind-to none python examples/keras_mixed_precision_jit.py.

Under mixed_float16 Keras scales the loss and skips steps whose gradients overflowed. All ranks skip
together, because gradients are reduced before Keras looks at them. With jit_compile=True the
reduction is part of the compiled program.
"""

import argparse

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import smddp_tf.keras as hvd

keras = tf.keras


def main():
    """Trains a small convolutional network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--policy", default="mixed_float16", help="or mixed_bfloat16, float32")
    args = parser.parse_args()
    hvd.init()
    hvd.set_random_seed(0)  # runs can be repeated; each rank has a dropout of its own
    keras.mixed_precision.set_global_policy(args.policy)
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x, y = digits.images[order, ..., None].astype("float32") / 16, digits.target[order]
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10, dtype="float32"),  # logits in full precision
        ]
    )
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.05 * hvd.size(), momentum=0.9)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=True,
    )
    model.fit(
        *hvd.shard((x[:1440], y[:1440])),
        batch_size=48,
        epochs=args.epochs,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.CheckRanksEqual(),
        ],
        verbose=2 if hvd.rank() == 0 else 0,
    )
    accuracy = model.evaluate(x[1440:], y[1440:], batch_size=51, verbose=0)[1]
    scale = getattr(model.optimizer, "dynamic_scale", None)
    scale = getattr(model.optimizer, "loss_scale", 1.0) if scale is None else scale
    scales = hvd.allgather_object(float(tf.convert_to_tensor(scale)))
    if hvd.rank() == 0:
        print(f"accuracy={accuracy:.3f}; loss scale of each rank: {scales}")


if __name__ == "__main__":
    main()
