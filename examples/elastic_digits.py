"""Trains on handwritten digits while ranks die, join and leave; kill one, and watch.

    smddprun -np 3 --min-np 2 python examples/elastic_digits.py
    smddprun -np 2 --min-np 1 --host-discovery-script ./hosts.sh python examples/elastic_digits.py

Each rank prints its process id: `kill -9` one of them. In the second job, hosts.sh prints
`localhost:3`, so a third rank comes, and a killed one is replaced. See docs/elastic.md.
"""

import argparse
import os
import time

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import smddp_tf.keras as hvd


def parse_arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=96, help="of all ranks together")
    parser.add_argument(
        "--pause", type=float, default=0.1, help="seconds after each step, to watch"
    )
    return parser.parse_args()


def main():
    """Trains, and checks that all ranks end with the same weights."""
    args = parse_arguments()
    hvd.init()
    digits = load_digits()
    x, y = (digits.data / 16.0).astype("f4"), digits.target.astype("i8")

    hvd.set_random_seed(0)
    model = tf.keras.Sequential([tf.keras.layers.Dense(128, "relu"), tf.keras.layers.Dense(10)])
    model.build([None, x.shape[1]])
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
    variables = model.trainable_variables
    optimizer.build(variables)

    @tf.function(reduce_retracing=True)
    def step(images, labels):
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        tape = hvd.DistributedGradientTape(tape)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return hvd.allreduce(loss)

    @hvd.elastic.run
    def train(state):
        print(f"rank {hvd.rank()} of {hvd.size()} is process {os.getpid()}", flush=True)
        while state.samples.epoch < args.epochs:
            for mine in state.samples.batches():
                loss = step(x[mine], y[mine])
                state.commit()  # after the step: what was handed out is trained on
                time.sleep(args.pause)
            if hvd.rank() == 0:
                done, ranks = state.samples.epoch, hvd.size()
                print(f"epoch {done}, {ranks} ranks: loss={float(loss):.4f}", flush=True)

    samples = hvd.elastic.Samples(len(x), args.batch)
    train(hvd.elastic.TensorFlowKerasState(model, optimizer, samples=samples))

    right = np.mean(np.argmax(model(x), 1) == y)
    hvd.check_ranks_equal(model.variables)
    if hvd.rank() == 0:
        print(f"all {hvd.size()} ranks hold the same weights; accuracy {right:.3f}")


if __name__ == "__main__":
    main()
