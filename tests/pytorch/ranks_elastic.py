"""Elastic states and samplers of PyTorch, on each rank of a job that is not elastic."""

import torch
from harness import report, without_init

import smddp_tf.torch as hvd


def _error(function):
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("nothing was raised")


@without_init
def state():
    """What a state saves, restores and sends."""
    hvd.init()
    rank = hvd.rank()
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 + rank)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    kept = hvd.elastic.TorchState(model, optimizer, schedule=schedule, epoch=rank, notes=[rank])
    assert kept.model is model and kept.optimizer is optimizer and kept.schedule is schedule

    def step():
        optimizer.zero_grad()
        model(torch.arange(12.0).view(4, 3) + rank).square().sum().backward()
        optimizer.step()
        schedule.step()
        kept.epoch += 1
        kept.notes.append(kept.epoch)

    def everything():
        moments = [one["exp_avg"] for one in optimizer.state.values()]
        tensors = [*model.state_dict().values(), *moments]
        rate = optimizer.param_groups[0]["lr"]
        numbers = [rate, schedule.last_epoch, kept.epoch, *kept.notes]
        return [*torch.cat([one.detach().flatten() for one in tensors]).tolist(), *numbers]

    step()
    kept.commit()
    committed = everything()
    step()
    step()  # what is restored was not changed by steps, and is not by those that follow
    kept.restore()
    assert everything() == committed
    step()
    kept.restore()
    assert everything() == committed
    kept.sync()
    assert everything() == hvd.broadcast_object(committed, 0)
    assert (everything() == committed) == (rank == 0)
    synced = everything()
    step()
    kept.restore()
    assert everything() == synced
    newcomer = hvd.elastic.TorchState(model=torch.nn.Linear(1, 1), optimizer=None, batch=3)
    assert (newcomer.batch, newcomer.optimizer) == (3, None)
    report(
        no_model=_error(lambda: hvd.elastic.TorchState([model])),
        taken=_error(lambda: hvd.elastic.TorchState(model, commit=1)),
        no_state=_error(lambda: hvd.elastic.run(lambda state: 1)(model)),
    )


@without_init
def sampler():
    """All samples are used, by all ranks alike; what was recorded is not used again."""
    hvd.init()
    size = hvd.size()
    data = torch.utils.data.TensorDataset(torch.arange(31))
    sampler = hvd.elastic.ElasticSampler(data, seed=3)
    loader = torch.utils.data.DataLoader(data, batch_size=2, sampler=sampler)

    def of_all():
        own = [one for (batch,) in loader for one in batch.tolist()]
        assert len(own) == len(sampler) == -(-len(sampler.remaining_indices) // size)
        assert own[:2] == sampler.get_indices(0, 2)
        return [one for part in hvd.allgather_object(own) for one in part]

    first = of_all()
    assert sorted(set(first)) == list(range(31)) and len(first) == sampler.total_size
    assert first != sorted(first)
    state = hvd.elastic.TorchState(sampler=sampler)
    for batch in range(2):
        sampler.record_batch(batch, 2)
    assert len(sampler.processed_indices) == 4 * size
    state.save()
    sampler.record_batch(2, 2)
    state.restore()
    done = set(sampler.processed_indices)
    assert len(done) == 4 * size
    assert sorted(set(of_all())) == sorted(set(range(31)) - done)
    assert all(rank.isdisjoint(done) for rank in map(set, hvd.allgather_object(set(of_all()))))
    own = sampler.get_indices(0, 1)
    sampler.record_indices(own)  # of this rank only, until the ranks change
    assert set(sampler.processed_indices) == done | set(own)
    state.save()
    state.sync()
    done |= {one for part in hvd.allgather_object(own) for one in part}
    assert set(sampler.processed_indices) == done and len(done) == 5 * size
    again = hvd.elastic.ElasticSampler(data, seed=3)
    again.load_state_dict(sampler.state_dict())
    assert list(again) == list(sampler)
    sampler.record_batch(3, 1)  # others before it were not recorded
    assert len(sampler.processed_indices) == 6 * size
    sampler.set_epoch(1)
    second = of_all()
    assert sorted(set(second)) == list(range(31)) and second != first
    everything = hvd.elastic.ElasticSampler(range(2), shuffle=False)
    own = [0, 1] if size == 1 else [hvd.rank() % 2]  # fewer samples than ranks
    assert list(everything) == own
    everything.record_indices([0, 1])
    everything.reset()
    assert list(everything) == [] and len(everything) == 0
    report()


@without_init
def other_model(width):
    """A job that goes on with the commit of another model."""
    hvd.init()
    model = torch.nn.Linear(3, width)
    state = hvd.elastic.TorchState(model, torch.optim.SGD(model.parameters(), 0.1), epoch=0)

    @hvd.elastic.run
    def train(state):
        state.epoch += 1
        state.commit()
        raise KeyError("the commit stays")

    error = _error(lambda: train(state))
    report(error=error, epoch=state.epoch)
