"""Keras on PyTorch: the loop of Keras's guide, and from Keras 3.16 fit(), beside one process.

All ranks have as many rows, so the average of their gradients is one process's, up to what Keras
rounds to float32.
"""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch
import torch.distributed as dist

import smddp_tf.torch  # noqa: F401 - registers the backend

ROWS, STEPS = 8, 6


def _model():
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(2)]
    return keras.Sequential([keras.Input([6]), *layers])


def _data():
    inputs = np.random.default_rng(2).normal(size=(ranks * ROWS * STEPS, 6))
    return inputs, np.tanh(inputs[:, :2])


def _rows_of(step, rank):
    """The rows of one rank, or with None those of all ranks."""
    begin = ranks * ROWS * step
    own = slice(0, ranks * ROWS) if rank is None else slice(ROWS * rank, ROWS * (rank + 1))
    return (torch.from_numpy(values[begin:][own]) for values in _data())


def _loop(model, of_rank):
    """Keras's guide: a DistributedDataParallel of a Keras model, and PyTorch's optimizer."""
    wrapped = model if of_rank is None else torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    for step in range(STEPS):
        inputs, wanted = _rows_of(step, of_rank)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(wrapped(inputs), wanted).backward()
        optimizer.step()
    return model


def _fit(model, of_rank):
    """fit(), which from Keras 3.16 on wraps the model by itself where there is a group."""
    steps = [[one.numpy() for one in _rows_of(step, of_rank)] for step in range(STEPS)]
    inputs, wanted = (np.concatenate(values) for values in zip(*steps, strict=True))
    model.compile(keras.optimizers.SGD(0.1, momentum=0.5), "mse")
    rows = ROWS if of_rank is not None else ranks * ROWS
    model.fit(inputs, wanted, batch_size=rows, epochs=1, shuffle=False, verbose=0)
    return model


def _weights(train, of_rank):
    trained = train(_model(), of_rank).trainable_variables
    return [one.value.detach().clone() for one in trained]


keras.config.set_floatx("float64")
ranks = int(os.environ["WORLD_SIZE"])
ways = {"loop": _loop}
if tuple(map(int, keras.version().split(".")[:2])) >= (3, 16):
    ways["fit"] = _fit
alone = {name: _weights(train, None) for name, train in ways.items()}  # there is no group yet
dist.init_process_group("smddp")
for name, train in ways.items():
    got = _weights(train, dist.get_rank())
    pairs = list(zip(got, alone[name], strict=True))
    assert len(pairs) == 4
    equal = all(torch.allclose(one, other, rtol=0, atol=1e-6) for one, other in pairs)
    moved = max((one - start.value).abs().max() for one, start in zip(got, _model().weights))
    print(f"rank {dist.get_rank()} of {ranks}: {name} {equal and bool(moved > 0.01)}", flush=True)
dist.destroy_process_group()
