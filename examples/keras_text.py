"""Tells from a text which module it is from: mpirun -np 2 --bind-to none python keras_text.py.

The texts are those of Python's own standard library. The gradient of the Embedding layer is sparse:
only the rows of words that occurred. Ranks exchange those rows, not the whole table.
"""

import argparse
import importlib
import inspect
import re
import zlib

import numpy as np
import tensorflow as tf

import smddp_tf.keras as hvd

keras = tf.keras
MODULES = "argparse asyncio datetime decimal email.message logging pathlib socket unittest".split()
WORDS, LENGTH = 8192, 40


def docstrings(module):
    """Sentences from the documentation of a module's classes and functions."""
    seen, texts = set(), []
    todo = [importlib.import_module(module)]
    while todo:
        item = todo.pop()
        for _, member in sorted(inspect.getmembers(item), key=lambda pair: pair[0]):
            text = getattr(member, "__doc__", None)
            if not isinstance(text, str) or text in seen or len(text) < 40:
                continue
            seen.add(text)
            texts += [s for s in re.split(r"\n\s*\n|\. ", text) if len(s.split()) >= 5]
            if inspect.isclass(member) and member.__module__.startswith(module.split(".")[0]):
                todo.append(member)
    return texts


def load():
    """Returns training and test data: word numbers (0 pads) and modules."""
    rows, labels = [], []
    for label, module in enumerate(MODULES):
        for text in docstrings(module):
            # Not hash(): that differs by process, and the ranks must agree.
            words = [1 + zlib.crc32(w.encode()) % (WORDS - 1) for w in re.findall(r"\w+", text)]
            rows.append((words + [0] * LENGTH)[:LENGTH])
            labels.append(label)
    order = np.random.default_rng(0).permutation(len(rows))
    x, y = np.array(rows)[order], np.array(labels)[order]
    split = len(x) * 4 // 5
    return (x[:split], y[:split]), (x[split:], y[split:])


def main():
    """Trains, and compares with guessing the most frequent module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()
    hvd.init()
    hvd.set_random_seed(0)  # runs can be repeated; each rank has a dropout of its own
    train, test = load()
    model = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            keras.layers.Embedding(WORDS, 32),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(len(MODULES)),
        ]
    )
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        *hvd.shard(train),
        batch_size=max(1, 64 // hvd.size()),
        epochs=args.epochs,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.CheckRanksEqual(),
        ],
        verbose=2 if hvd.rank() == 0 else 0,
    )
    accuracy = model.evaluate(*test, verbose=0)[1]
    if hvd.rank() == 0:
        guess = np.bincount(test[1]).max() / len(test[1])
        print(f"{len(train[0])} sentences; accuracy={accuracy:.3f}; guessing={guess:.3f};")


if __name__ == "__main__":
    main()
