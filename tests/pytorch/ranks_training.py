"""Training on ranks equals training on one process, bit for bit.

Inputs, weights and learning rates are small multiples of powers of two, ranks are two or four, and
models are linear: all sums are exact, in whatever order they are made.
"""

import contextlib
import shutil
import tempfile

import torch
import torch.distributed as dist
from harness import rank, report, size, without_init
from torch.nn.parallel import DistributedDataParallel

import smddp_tf.torch  # noqa: F401 - registers the backend

ROWS = 4
STEPS = 4
RATE = 2.0**-6


class Model(torch.nn.Module):
    """Sums linear layers. The second takes part in some steps, the third in none."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (
            torch.nn.Linear(6, 5, dtype=torch.float64) for _ in range(3)
        )
        for i, weights in enumerate(self.parameters()):
            values = torch.arange(weights.numel()).remainder(5 + i) - 2
            weights.data.copy_(values.view(weights.shape))

    def forward(self, inputs, second):
        """The second layer on demand."""
        return self.first(inputs) + (self.second(inputs) if second else 0)


class Whole(torch.nn.Module):
    """A model all of whose weights are used."""

    def __init__(self):
        super().__init__()
        self.inner = Model()
        del self.inner.third

    def forward(self, inputs, second):
        """Both layers."""
        return self.inner(inputs, True)


def _data(step, first, last):
    """Rows of the step's batch of all ranks."""
    values = torch.arange(6 * ROWS * size, dtype=torch.float64).view(-1, 6)
    inputs = (values * 7 + 3 * step).remainder(5) - 2
    return inputs[first:last], inputs[first:last, :5].remainder(3)


def _loss(model, step, first, last, second):
    inputs, wanted = _data(step, first, last)
    return (model(inputs, second) - wanted).square().sum() / (8 * (last - first))


def _train(model, optimizer, own_rows=True, seconds=lambda step: step % 2 == 1, every=1):
    """Steps with this rank's rows, or with those of all ranks."""
    first, last = (ROWS * rank, ROWS * (rank + 1)) if own_rows else (0, ROWS * size)
    for step in range(STEPS):
        ends = (step + 1) % every == 0
        silent = getattr(model, "no_sync", contextlib.nullcontext)
        with contextlib.nullcontext() if ends else silent():
            _loss(model, step, first, last, seconds(step)).backward()
        if ends:
            optimizer.step()
            optimizer.zero_grad()


def _sgd(parameters):
    return torch.optim.SGD(parameters, lr=RATE, momentum=0.5)


def _alone(make, **options):
    model = make()
    _train(model, _sgd(model.parameters()), own_rows=False, **options)
    return list(model.parameters())


def _assert_equal(ours, alone):
    start = list(type(alone)(one.detach() for one in ours))
    assert len(start) == len(alone) > 1
    for one, other in zip(start, alone, strict=True):
        assert torch.equal(one, other.detach()), (one - other).abs().max()


@without_init
def data_parallel():
    """DDP in its modes, as one process trains on the rows of all ranks."""
    dist.init_process_group("smddp")
    cases = [
        (Whole, {}, {}),
        (Whole, {"gradient_as_bucket_view": True}, {}),
        (Whole, {"static_graph": True}, {}),
        (Whole, {"bucket_cap_mb": 0.0001}, {}),
        (Model, {"find_unused_parameters": True}, {}),
        (Model, {"find_unused_parameters": True, "gradient_as_bucket_view": True}, {}),
        (Whole, {}, {"every": 2}),
    ]
    for make, options, training in cases:
        made = make()
        if rank:  # DDP sends those of rank 0
            for weights in made.parameters():
                weights.data.fill_(rank)
        model = DistributedDataParallel(made, **options)
        _train(model, _sgd(model.parameters()), **training)
        _assert_equal(list(model.parameters()), _alone(make, **training))
    before = [weights.clone() for weights in Whole().parameters()]
    moved = [not torch.equal(a, b) for a, b in zip(before, _alone(Whole), strict=True)]
    assert all(moved)
    report(done=True)


@without_init
def unused_on_some_ranks():
    """A layer that one rank alone has used gets its gradient on all."""
    dist.init_process_group("smddp")
    model = DistributedDataParallel(Model(), find_unused_parameters=True)
    _loss(model, 0, ROWS * rank, ROWS * (rank + 1), rank == 0).backward()
    alone = Model()
    (_loss(alone, 0, 0, ROWS, True) / size).backward()
    assert torch.equal(model.module.second.weight.grad, alone.second.weight.grad)
    assert model.module.third.weight.grad is None
    report(done=True)


def _everyone_has(weights):
    everyone = [torch.empty_like(weights) for _ in range(size)]
    dist.all_gather(everyone, weights.detach())
    assert all(torch.equal(one, everyone[0]) for one in everyone)


def _fully_sharded(alone):
    """fully_shard and its checkpoint, which another model loads."""
    from torch.distributed import checkpoint
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(torch.get_default_device().type, (size,))
    sharded, loaded = Whole(), Whole()
    for model in (sharded, loaded):
        fully_shard(model, mesh=mesh)
    _train(sharded, _sgd(sharded.parameters()))
    _assert_equal([weights.full_tensor() for weights in sharded.parameters()], alone)
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder, 0)
    checkpoint.save(sharded.state_dict(), checkpoint_id=folder[0])
    state = loaded.state_dict()
    checkpoint.load(state, checkpoint_id=folder[0])
    loaded.load_state_dict(state)
    _assert_equal([weights.full_tensor() for weights in loaded.parameters()], alone)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder[0])


@without_init
def sharded():
    """ZeRO, FSDP and fully_shard, as one process; a checkpoint; uneven inputs with join()."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.optim import ZeroRedundancyOptimizer

    dist.init_process_group("smddp")
    alone = _alone(Whole)
    model = DistributedDataParallel(Whole())
    options = {"optimizer_class": torch.optim.SGD, "lr": RATE, "momentum": 0.5}
    _train(model, ZeroRedundancyOptimizer(model.parameters(), **options))
    _assert_equal(list(model.parameters()), alone)
    here = next(model.parameters()).device
    model = FullyShardedDataParallel(Whole(), use_orig_params=True, device_id=here)
    _train(model, _sgd(model.parameters()))
    with FullyShardedDataParallel.summon_full_params(model):
        _assert_equal(list(model.parameters()), alone)
    _fully_sharded(alone)
    model = DistributedDataParallel(Whole())
    optimizer = _sgd(model.parameters())
    with model.join():
        for step in range(2 + rank):
            _loss(model, step, ROWS * rank, ROWS * (rank + 1), True).backward()
            optimizer.step()
            optimizer.zero_grad()
    for weights in model.parameters():
        _everyone_has(weights)
    report(done=True)
