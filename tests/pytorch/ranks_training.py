"""Training on ranks equals training on one process, bit for bit.

Inputs, weights and learning rates are small multiples of powers of two, ranks are two or four, and
models are linear: all sums are exact, in whatever order they are made.
"""

import contextlib
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives
from harness import rank, report, size, without_init
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.nn.parallel import DistributedDataParallel

import smddp_tf.torch as hvd

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


def _compiled(whole):
    """Compiles as torch.compile does, but for machine code, which takes a compiler and minutes."""
    return torch.compile(whole, backend="aot_eager")


def _steps_compiled_whole(model, optimizer):
    """The step of a loop as one compiled function."""

    @_compiled
    def step(number):
        optimizer.zero_grad()
        loss = _loss(model, number, ROWS * rank, ROWS * (rank + 1), True)
        loss.backward()
        optimizer.step()
        return loss

    for number in range(STEPS):
        step(number)


@without_init
def compiled():
    """torch.compile of models and of whole steps: DDP, fully_shard, Horovod's optimizer."""
    dist.init_process_group("smddp")
    alone = _alone(Whole)
    wrapped = DistributedDataParallel
    for model in (_compiled(wrapped(Whole())), wrapped(_compiled(Whole()))):
        _train(model, _sgd(model.parameters()))
        _assert_equal(list(model.parameters()), alone)
    model = Whole()
    optimizer = hvd.DistributedOptimizer(_sgd(model.parameters()), model.named_parameters())
    _train(_compiled(model), optimizer)
    _assert_equal(list(model.parameters()), alone)
    for wrap in (DistributedDataParallel, None):
        inner = Whole()
        optimizer = _sgd(inner.parameters())
        if wrap is None:
            optimizer = hvd.DistributedOptimizer(optimizer, inner.named_parameters())
        _steps_compiled_whole(wrap(inner) if wrap else inner, optimizer)
        _assert_equal(list(inner.parameters()), alone)
    model = Whole()
    fully_shard(model.inner.first)
    fully_shard(model)
    _train(_compiled(model), _sgd(model.parameters()))
    _assert_equal([one.full_tensor() for one in model.parameters()], alone)
    report(done=True)


@without_init
def collectives_in_compiled_functions():
    """torch.distributed's, functional ones and Horovod's, again and again."""
    dist.init_process_group("smddp")

    @_compiled
    def of_torch(tensor):
        work = dist.all_reduce(tensor, async_op=True)
        doubled = tensor.new_ones(3) * 2
        work.wait()
        parts = [torch.empty_like(tensor) for _ in range(size)]
        dist.all_gather(parts, tensor + rank)
        dist.barrier()
        return torch.stack(parts).sum(0) + doubled

    @_compiled
    def functional(tensor):
        total = functional_collectives.all_reduce(tensor * 2, "sum", dist.group.WORLD)
        gathered = functional_collectives.all_gather_tensor(total, 0, dist.group.WORLD)
        return functional_collectives.reduce_scatter_tensor(gathered, "avg", 0, dist.group.WORLD)

    @_compiled
    def horovods(tensor):
        total = hvd.allreduce(tensor * 2, op=hvd.Sum)
        handle = hvd.allreduce_async(total + rank, op=hvd.Sum)
        return hvd.broadcast(hvd.synchronize(handle) + 1, 1)

    @_compiled
    def between_two(tensor):
        if rank == 0:
            dist.send(tensor, 1)
        else:
            dist.recv(tensor, 0)
        received = torch.empty_like(tensor)
        sent = dist.P2POp(dist.isend, tensor + rank, 1 - rank)
        for work in dist.batch_isend_irecv([sent, dist.P2POp(dist.irecv, received, 1 - rank)]):
            work.wait()
        return received + dist.get_world_size()

    ranks = sum(range(size))
    for i in range(10):  # also where Dynamo has given up compiling the same again
        own = torch.full((3,), float(rank + i))
        total = ranks + size * i
        assert torch.equal(between_two(own.clone()), torch.full((3,), float(i + 1 - rank + size)))
        assert torch.equal(functional(own), torch.full((3,), 2.0 * total))
        assert torch.equal(horovods(own), torch.full((3,), 2.0 * total * size + ranks + 1))
        assert torch.equal(of_torch(own), torch.full((3,), float(total * size + ranks + 2)))
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
    """fully_shard and its checkpoints, which another model loads; also one that rank 0 has."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint import state_dict as whole
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(torch.get_default_device().type, (size,))
    sharded, loaded = Whole(), Whole()
    for model in (sharded, loaded):
        fully_shard(model, mesh=mesh)
    _train(sharded, _sgd(sharded.parameters()))
    _assert_equal([weights.full_tensor() for weights in sharded.parameters()], alone)
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder, 0)
    for save in (checkpoint.save, checkpoint.async_save):
        saving = save(sharded.state_dict(), checkpoint_id=f"{folder[0]}/{save.__name__}")
        if save is checkpoint.async_save:
            saving.result(timeout=60)
        for weights in loaded.parameters():
            weights.data.zero_()
        state = loaded.state_dict()
        checkpoint.load(state, checkpoint_id=f"{folder[0]}/{save.__name__}")
        loaded.load_state_dict(state)
        _assert_equal([weights.full_tensor() for weights in loaded.parameters()], alone)
    options = whole.StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = whole.get_model_state_dict(sharded, options=options)  # empty but on rank 0
    for weights in loaded.parameters():
        weights.data.zero_()
    options = whole.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    whole.set_model_state_dict(loaded, state, options=options)
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


@without_init
def two_dimensions():
    """Groups of some ranks as rows and columns: copies of divided models, and divided layers."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    dist.init_process_group("smddp")
    here = torch.get_default_device().type
    mesh = init_device_mesh(here, (2, size // 2), mesh_dim_names=("copies", "parts"))
    alone = _alone(Whole)
    model = fully_shard(Whole(), mesh=mesh)  # HSDP
    _train(model, _sgd(model.parameters()))
    _assert_equal([weights.full_tensor() for weights in model.parameters()], alone)
    layers = {"inner.first": ColwiseParallel(output_layouts=Replicate())}
    model = parallelize_module(Whole(), mesh["parts"], layers)
    _train(model, _sgd(model.parameters()), own_rows=False)
    whole = [getattr(one, "full_tensor", lambda one=one: one)() for one in model.parameters()]
    _assert_equal(whole, alone)
    kinds = {type(mesh.get_group(name)).__name__ for name in ("copies", "parts")}
    report(kinds=sorted(kinds))
