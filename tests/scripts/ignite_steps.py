"""PyTorch Ignite's loop on Horovod's names, and its weights beside those of one process.

Usage: ignite_steps.py [ranks to start].
"""

import sys

import ignite.distributed as idist
import torch
from ignite.engine import Engine

ROWS, STEPS = 4, 6


def _dataset(ranks):
    torch.manual_seed(3)
    inputs = torch.randn(ranks * ROWS * STEPS, 6, dtype=torch.float64)
    return torch.utils.data.TensorDataset(inputs, inputs[:, :2].tanh())


def _train(model, optimizer, loader):
    def step(engine, batch):
        del engine
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss.item()

    return Engine(step).run(loader, max_epochs=2).output


def _parts(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    return model.double()


def _sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)


def work(local_rank):
    """What each rank does."""
    rank, ranks = idist.get_rank(), idist.get_world_size()
    assert local_rank == rank
    dataset = _dataset(ranks)
    loader = idist.auto_dataloader(dataset, batch_size=ranks * ROWS, shuffle=False)
    model = idist.auto_model(_parts(seed=rank))  # all take rank 0's
    loss = _train(model, idist.auto_optim(_sgd(model)), loader)

    alone = _parts(seed=0)
    whole = torch.utils.data.DataLoader(dataset, batch_size=ranks * ROWS)
    want = _train(alone, _sgd(alone), whole)
    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    equal = all(torch.allclose(got, one, atol=1e-12) for got, one in pairs)
    mean = idist.all_reduce(loss, op="AVERAGE") if ranks > 1 else loss
    lowest = idist.all_reduce(torch.tensor([rank + 1.0]), op="MIN").item()
    gathered = idist.all_gather({"rank": rank}) == [{"rank": one} for one in range(ranks)]
    sent = idist.broadcast("from 0" if rank == 0 else None, src=0, safe_mode=True) == "from 0"
    first = idist.new_group([0])
    inside = idist.all_gather(torch.tensor([rank]), group=first).tolist() == [rank]
    idist.barrier()
    checks = [equal, abs(mean - want) < 1e-12, lowest == 1.0, gathered, sent, inside]
    print(f"rank {rank} of {ranks} on {idist.backend()}", *checks, flush=True)


if __name__ == "__main__":
    starts = {"nproc_per_node": int(sys.argv[1])} if sys.argv[1:] else {}
    with idist.Parallel(backend="horovod", **starts) as parallel:
        parallel.run(work)
