"""An elastic training by PyTorch, whose ranks are killed while it runs.

    smddprun -np 3 --min-np 2 python tests/scripts/torch_elastic.py FOLDER 1@7 3+9

In slot 1 the process ends itself with SIGKILL before step 7; with 1:7 it does so while the others
are in the backward pass of that step. With 1-7 it gets SIGTERM, and the ranks wait until it has
left. 3+9: they wait before step 9 until there are three of them. 3<2: the process in slot 3 comes
when they have gone on as two, else a lost rank may be replaced before it is missed. 1#9 leaves a
file of that name in FOLDER before they wait. Each happens once. Each rank that ends well leaves a
line of JSON in FOLDER/results, which compares its weights with one process's.

Jobs that are not elastic have ranks in place of slots.
"""

import json
import os
import pathlib
import signal
import sys
import time

import newcomers
import torch

import smddp_tf.torch as hvd

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
EPOCHS, COUNT, BATCH = 3, 60, 12
folder, plan = pathlib.Path(sys.argv[1]), set(sys.argv[2:])
newcomers.await_turn(folder, plan, os.environ.get("SMDDP_RENDEZVOUS_SLOT"))
hvd.init()
slot = int(os.environ.get("SMDDP_RENDEZVOUS_SLOT", hvd.rank()))
sizes, resets = [], []


def make():
    torch.manual_seed(3)
    layers = [torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)]
    model = torch.nn.Sequential(*layers)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


generator = torch.Generator().manual_seed(5)
x = torch.randn(COUNT, 5, generator=generator)
y = x.sum(1, keepdim=True)


def step(model, optimizer, part):
    optimizer.zero_grad()
    ((model(x[part]) - y[part]) ** 2).mean().backward()
    optimizer.step()


def alone():
    model, optimizer = make()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, gamma=0.5)
    samples = hvd.elastic.Samples(COUNT, BATCH)
    for _ in range(EPOCHS):
        order, at = samples._order(), 0
        for at in range(0, COUNT, BATCH):
            step(model, optimizer, order[at : at + BATCH])
            schedule.step()
        samples.end_epoch()
    return model


def perhaps(word, number):
    """Sends itself a signal, if that is planned here and has not happened before."""
    event = f"{slot}{word}{number}"
    if event in plan and not (folder / event).exists():
        (folder / event).touch()
        if word == ":":
            time.sleep(0.5)  # the others have sent the gradients of the last layer
        if word != "#":
            os.kill(os.getpid(), signal.SIGTERM if word == "-" else signal.SIGKILL)


def await_others(state):
    """Before a step whose samples were not handed out yet."""
    perhaps("-", state.step)
    perhaps("#", state.step)
    size, end = hvd.size(), time.monotonic() + 100
    leaves = any(f"{one}-{state.step}" in plan for one in range(4)) and size == 3
    while (leaves or f"{size + 1}+{state.step}" in plan) and time.monotonic() < end:
        state.check_host_updates()  # raises when they have come, or left
        time.sleep(0.05)


def main():
    model, optimizer = make()
    if hvd.rank():  # the state of rank 0 counts
        torch.nn.init.zeros_(model[0].weight)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, gamma=0.5)
    hvd.allreduce(torch.ones(1))  # without a name: a newcomer, who is alone here, counts it too
    hvd.broadcast_parameters(torch.nn.Linear(1, 1).state_dict(), root_rank=1)
    assert hvd.broadcast_object(slot, root_rank=1) is not None
    samples = hvd.elastic.Samples(COUNT, BATCH)
    state = hvd.elastic.TorchState(model, optimizer, schedule=schedule, samples=samples, step=0)
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])

    model[0].weight.register_hook(lambda gradient: perhaps(":", state.step))

    @hvd.elastic.run
    def train(state):
        sizes.append(hvd.size())
        newcomers.note_size(folder, hvd.size())
        other = hvd.DistributedOptimizer(torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), 0.1))
        while state.samples.epoch < EPOCHS:
            for part in state.samples.batches():
                perhaps("@", state.step)
                step(model, optimizer, part)
                schedule.step()
                state.step += 1
                await_others(state)
                if state.step % 2 == 0:
                    state.commit()
        other.step()  # made in here: ranks agree on its number
        total = hvd.allreduce(torch.ones(1), op=hvd.Sum)
        return int(total)

    ranks = train(state)
    both = zip(model.parameters(), alone().parameters(), strict=True)
    error = max((one - other).abs().max().item() for one, other in both)
    place = {"slot": slot, "sizes": sizes, "resets": resets, "ranks": ranks}
    with open(folder / "results", "a") as results:
        results.write(json.dumps({**place, "error": error, "steps": state.step}) + "\n")


main()
