"""An optimizer of TensorFlow Addons: mpirun -np 2 --bind-to none python examples/tfa_lamb.py.

LAMB is made for the large batches that many ranks have together. Needs tensorflow-addons 0.23 on
TensorFlow 2.15 (Keras 2).
"""

import argparse

import numpy as np
import tensorflow as tf
import tensorflow_addons as tfa
from sklearn.datasets import load_digits

import smddp_tf.keras as hvd

keras = tf.keras


def main():
    """Trains with large batches."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=240, help="of all ranks together")
    args = parser.parse_args()
    hvd.init()
    hvd.set_random_seed(0)  # runs can be repeated; each rank has a dropout of its own
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x, y = digits.data[order].astype("float32") / 16, digits.target[order]
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)]
    )
    model.compile(
        hvd.DistributedOptimizer(tfa.optimizers.LAMB(0.01)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        *hvd.shard((x[:1440], y[:1440])),
        batch_size=args.batch // hvd.size(),
        epochs=args.epochs,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.CheckRanksEqual(),
        ],
        verbose=2 if hvd.rank() == 0 else 0,
    )
    accuracy = model.evaluate(x[1440:], y[1440:], verbose=0)[1]
    if hvd.rank() == 0:
        print(f"accuracy={accuracy:.3f};")


if __name__ == "__main__":
    main()
