"""Ranks that use different layers, and call other collectives before the step."""

import threading
import time

import torch
from harness import rank, report, size, without_init

import smddp_tf.torch as hvd

RATE = 0.25
STEPS = 4


def _calls():
    """Collectives of each kind that a script may call there; false if a result is wrong."""
    total = size * (size + 1) / 2
    mine = torch.tensor([rank + 1.0])

    def wait_for_two():
        handles = [hvd.allreduce_async(mine * i, name=f"of {i}", op=hvd.Sum) for i in (1, 2)]
        assert [hvd.synchronize(one).item() for one in handles] == [total, 2 * total]

    yield lambda: None
    yield lambda: hvd.allreduce(mine, op=hvd.Sum).item() == total
    yield lambda: hvd.allgather(mine).sum().item() == total
    yield lambda: hvd.broadcast_object(rank, 0) == 0
    yield hvd.barrier
    yield wait_for_two


@without_init
def other_layers():
    """Ranks in turn leave out a layer, or use one alone; each step has all gradients."""
    hvd.init()
    torch.manual_seed(5)
    layers = [torch.nn.Linear(2, 2) for _ in range(size + 1)]  # each weight has a bucket
    start = [layer.bias.detach().clone() for layer in layers]
    every = [one for layer in layers for one in layer.parameters()]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(every, RATE))
    used = torch.zeros(size + 1)  # by so many ranks, in all steps
    began = time.time()
    for call in _calls():
        for out in range(size):
            special = torch.eye(size + 1).roll(out, 0)[:size]  # of each rank, its layer
            one_rank = torch.arange(size)[:, None] == out
            for uses in (special, 1 - special, 1 - special * one_rank):
                used += uses.sum(0)
                optimizer.zero_grad()
                mine = [layers[i] for i in uses[rank].nonzero().flatten()]
                sum(layer(torch.ones(1, 2)).sum() for layer in mine).backward()
                assert call() is not False
                optimizer.step()
    seconds = time.time() - began
    for before, layer, times in zip(start, layers, used, strict=True):
        assert torch.allclose(layer.bias, before - RATE * times / size), (times, rank)
    report(seconds=seconds)


@without_init
def a_table_of_others():
    """A rank that has never used a table learns that its gradient is sparse."""
    hvd.init()
    table = torch.nn.Embedding(3, 2, sparse=True)
    start = table.weight.detach().clone()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), RATE))
    for _ in range(STEPS):
        optimizer.zero_grad()
        if rank == 0:
            table(torch.tensor([1])).sum().backward()
        hvd.barrier()
        optimizer.step()
    assert torch.allclose(table.weight[1], start[1] - STEPS * RATE / size)
    assert torch.equal(table.weight[::2], start[::2])
    report(done=True)


@without_init
def two_optimizers():
    """Backward passes of two optimizers, on each rank in another order."""
    hvd.init()
    torch.manual_seed(5)
    models = [torch.nn.Linear(2, 1) for _ in range(2)]
    start = [model.bias.item() for model in models]
    optimizers = [
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), RATE)) for model in models
    ]
    for step in range(STEPS):
        for i in (0, 1) if (rank + step) % 2 else (1, 0):
            optimizers[i].zero_grad()
            (rank * models[i](torch.ones(1, 2)).sum()).backward()
        hvd.allreduce(torch.ones(1))
        for one in optimizers:
            one.step()
    for before, model in zip(start, models, strict=True):
        assert abs(before - model.bias.item() - STEPS * RATE * (size - 1) / 2) < 1e-5
    report(done=True)


@without_init
def too_late():
    """A gradient that comes after the others have waited for it is an error, not a wrong number."""
    hvd.init()
    layers = [torch.nn.Linear(2, 2) for _ in range(2)]
    every = [one for layer in layers for one in layer.parameters()]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(every, RATE))
    text = ""
    for layer in layers if rank else layers[::-1]:
        try:
            layer(torch.ones(1, 2)).sum().backward()
        except AssertionError as error:
            text = str(error)
        hvd.allreduce(torch.ones(1))
    optimizer.step()
    report(text=text)


@without_init
def beside_a_thread():
    """A thread that brings the collectives for which others wait, late: nothing is sent for it."""
    hvd.init()
    torch.manual_seed(5)
    layers = [torch.nn.Linear(2, 2) for _ in range(2)]
    every = [one for layer in layers for one in layer.parameters()]
    start = [layer.bias.detach().clone() for layer in layers]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(every, RATE))
    sums = []

    def other():
        for i in range(STEPS):
            time.sleep(0.2 * (i % size == rank))
            sums.append(hvd.allreduce(torch.ones(1) * i, name=f"other {i}", op=hvd.Sum).item())

    thread = threading.Thread(target=other)
    thread.start()
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = sum(layer(torch.ones(1, 2)).sum() for layer in layers)
        time.sleep(0.1 * ((step + 1) % size == rank))
        loss.backward()
        for one in every:
            one.grad.mul_(2.0)
        optimizer.step()
    thread.join()
    assert sums == [i * size for i in range(STEPS)], sums
    for before, layer in zip(start, layers, strict=True):
        assert torch.allclose(layer.bias, before - 2 * STEPS * RATE), (layer.bias, before)
    report(done=True)
