"""Trains in a training job of SageMaker, or anywhere: smddprun -np 2 python train.py.

The channel "training" has digits.npz (x, y); without one the digits of scikit-learn are used. The
model is exported for serving, and training goes on from the last checkpoint after an interruption.
"""

import argparse

import numpy as np
import tensorflow as tf

import smddp_tf.keras as hvd
from smddp_tf import sagemaker


def load(path):
    """Rows of floats in [0, 1] and labels, from digits.npz in that folder or scikit-learn."""
    if (path / "digits.npz").exists():
        with np.load(path / "digits.npz") as data:
            return data["x"].astype("f4"), data["y"].astype("i8")
    from sklearn.datasets import load_digits

    digits = load_digits()
    return (digits.data / 16.0).astype("f4"), digits.target.astype("i8")


class Metrics(tf.keras.callbacks.Callback):
    """Lines that CloudWatch reads, from rank 0; the estimator's metric definitions match them."""

    def on_epoch_end(self, epoch, logs=None):
        """The epoch's averages over all ranks."""
        sagemaker.log_metrics(epoch=epoch, **logs)


def main():
    """Train on this rank's part of the data; rank 0 exports."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    args, _ = parser.parse_known_args()  # SageMaker may add hyperparameters of its own

    job = sagemaker.job()
    hvd.init()
    sagemaker.check_hosts(job)
    x, y = load(job.channel("training", default="data"))
    # Without a last batch of a few samples, whose step would be as long as the others.
    hvd.set_random_seed(1)
    data = hvd.shard((x, y), shuffle=True, seed=1).batch(32, drop_remainder=True)

    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input([x.shape[1]]),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(args.learning_rate * hvd.size()))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.BackupAndRestore(str(job.checkpoint_dir)),
        Metrics(),
    ]
    model.fit(data, epochs=args.epochs, callbacks=callbacks, verbose=0)
    if hvd.rank() == 0:
        model.export(job.model_dir / "1")  # TensorFlow Serving's layout: a folder for each version


if __name__ == "__main__":
    main()
