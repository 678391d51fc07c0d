"""Trains on handwritten digits: mpirun -np 2 --bind-to none python examples/train_digits.py.

The data ship with scikit-learn; --data takes an MNIST-style .npz (x_train, y_train, x_test,
y_test). Lines that distribution added are marked `# distributed`.
"""

import argparse
import pathlib
import sys
import time

import numpy as np
import tensorflow as tf

import smddp_tf as hvd  # distributed


def load(path):
    """Returns (x, y, x_test, y_test): rows of floats in [0, 1] and integer labels."""
    if path:
        with np.load(path) as data:
            x, x_test = (data[k].reshape(len(data[k]), -1) / 255.0 for k in ("x_train", "x_test"))
            y, y_test = data["y_train"], data["y_test"]
    else:
        from sklearn.datasets import load_digits

        digits = load_digits()
        order = np.random.default_rng(0).permutation(len(digits.target))
        (x, x_test), (y, y_test) = (
            np.split(a[order], [1440]) for a in (digits.data / 16.0, digits.target)
        )
    return (a.astype(t) for a, t in ((x, "f4"), (y, "i8"), (x_test, "f4"), (y_test, "i8")))


def make_model(features):
    """A network of two layers, built at once, so that its variables exist."""
    hidden = tf.keras.layers.Dense(128, activation="relu")
    model = tf.keras.Sequential([hidden, tf.keras.layers.Dense(10)])
    model.build([None, features])
    return model


def parse_arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=96, help="of all ranks together")
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate of 48 samples")
    parser.add_argument("--data", help="an MNIST-style .npz")
    parser.add_argument("--checkpoints", default="checkpoints", help="folder")
    parser.add_argument("--resume", action="store_true", help="from the last checkpoint")
    parser.add_argument("--weights", help="write the final weights here (.npz)")
    return parser.parse_args()


def main():
    """Trains, and checks that all ranks end with the same weights."""
    args = parse_arguments()
    hvd.init()  # distributed
    x, y, x_test, y_test = load(args.data)
    if args.batch % hvd.size():
        sys.exit(f"--batch {args.batch} is not a multiple of the {hvd.size()} ranks")
    local_batch = args.batch // hvd.size()  # distributed
    hvd.set_random_seed(0)  # distributed: dropout would differ by rank
    model = make_model(x.shape[1])
    rate = args.rate * local_batch / 48
    optimizer = tf.keras.optimizers.SGD(rate * hvd.size(), momentum=0.9)  # distributed
    variables = model.trainable_variables
    optimizer.build(variables)
    epoch_done = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, epoch=epoch_done)
    latest = tf.train.latest_checkpoint(args.checkpoints)
    if args.resume and latest and hvd.rank() == 0:  # distributed: rank 0 reads ...
        checkpoint.restore(latest).expect_partial()
    state = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    hvd.broadcast_variables([*model.variables, *state, epoch_done], root_rank=0)  # ... all get it

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        tape = hvd.DistributedGradientTape(tape)  # distributed
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    steps, start, seen = len(x) // args.batch, time.perf_counter(), 0
    for epoch in range(int(epoch_done), args.epochs):
        order = np.random.default_rng(epoch).permutation(len(x))[: steps * args.batch]
        total = 0.0
        for i, batch in enumerate(order.reshape(steps, args.batch)):
            mine = batch[hvd.rank() * local_batch :][:local_batch]  # distributed: this rank's part
            total += float(step(x[mine], y[mine]))
            seen += args.batch
            if hvd.rank() == 0:  # distributed
                done = 30 * (i + 1) // steps
                print(f"\repoch {epoch + 1} [{'=' * done:30}]", end="", flush=True)
        correct = np.argmax(model(x_test), axis=1) == y_test
        loss = float(hvd.allreduce(tf.constant(total / steps), name="loss"))  # distributed
        epoch_done.assign(epoch + 1)
        if hvd.rank() == 0:  # distributed
            print(
                f"\repoch {epoch + 1} loss={loss:.4f}; accuracy={correct.mean():.4f};", flush=True
            )
            pathlib.Path(args.checkpoints).mkdir(parents=True, exist_ok=True)
            checkpoint.save(f"{args.checkpoints}/digits")
    rate = seen / (time.perf_counter() - start)
    hvd.check_ranks_equal(model.variables)  # distributed: raises if they are not
    if hvd.rank() == 0:
        print(f"all {hvd.size()} ranks hold the same weights; {rate:.0f} samples/s")
        if args.weights:
            np.savez(args.weights, *[v.numpy() for v in model.variables])


if __name__ == "__main__":
    main()
