"""Trains a Keras model with fit(): mpirun -np 2 --bind-to none python examples/keras_digits.py.

Handwritten digits that ship with scikit-learn. Shows every callback, checkpoints on rank 0, and
resuming. Lines that distribution added are marked `# distributed`; docs/keras.md explains them.
"""

import argparse
import pathlib

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import smddp_tf.keras as hvd  # distributed

keras = tf.keras


def load():
    """Returns training and test data: rows of floats in [0, 1], and labels."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x, y = digits.data[order].astype("float32") / 16, digits.target[order]
    return (x[:1440], y[:1440]), (x[1440:], y[1440:])


def make_model(rate):
    """A compiled model of two layers."""
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)]
    )
    optimizer = keras.optimizers.SGD(rate, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer)  # distributed
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def parse_arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=48, help="of each rank")
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate of one rank")
    parser.add_argument("--checkpoints", default="checkpoints", help="folder")
    parser.add_argument("--resume", action="store_true", help="from the last checkpoint")
    return parser.parse_args()


def main():
    """Trains, evaluates, and checks that all ranks end with the same weights."""
    args = parse_arguments()
    hvd.init()  # distributed
    hvd.set_random_seed(0)  # distributed: the same data order, another dropout on each rank
    train, test = load()
    train = hvd.shard(train)  # distributed: this rank's part, of the same size everywhere
    rate = args.rate * hvd.size()  # distributed: the batch of all ranks is size() times as large
    folder = pathlib.Path(args.checkpoints)
    last, best = str(folder / "last.keras"), str(folder / "best.keras")
    steps = -(-len(train[0]) // args.batch)
    if args.resume:
        model = hvd.load_model(last)  # distributed: instead of keras.models.load_model
        first_epoch = int(tf.convert_to_tensor(model.optimizer.iterations)) // steps
    else:
        folder.mkdir(parents=True, exist_ok=True)
        model, first_epoch = make_model(rate), 0
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # distributed
        hvd.callbacks.MetricAverageCallback(),  # distributed: before those that look at metrics
        hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=3, verbose=1),  # distributed
        hvd.callbacks.EarlyStopping("val_loss", patience=10),  # distributed
        hvd.callbacks.BestModelCheckpoint(monitor="val_loss", filepath=best),  # distributed
        hvd.callbacks.RankZero(keras.callbacks.ModelCheckpoint(last)),  # distributed
        hvd.callbacks.Throughput(args.batch),  # distributed
        hvd.callbacks.CheckRanksEqual(),  # distributed: says so if the ranks drift apart
    ]
    model.fit(
        *train,
        batch_size=args.batch,
        epochs=args.epochs,
        initial_epoch=first_epoch,
        validation_data=hvd.shard(test, uneven="repeat"),  # distributed
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,  # distributed
    )
    accuracy = model.evaluate(*test, verbose=0)[1]
    hvd.check_ranks_equal(model.trainable_variables)  # distributed: raises if they are not
    if hvd.rank() == 0:
        print(f"all {hvd.size()} ranks hold the same weights; test accuracy={accuracy:.4f};")


if __name__ == "__main__":
    main()
