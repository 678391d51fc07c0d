"""Collectives on every rank. What a rank gives differs from the others', and sums exactly."""

import datetime
import functools
import os

import torch
import torch.distributed as dist
from harness import rank, report, size, without_init

import smddp_tf
import smddp_tf.torch  # noqa: F401 - registers the backend

SUM = sum(range(1, size + 1))
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
DTYPES += [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def _start():
    if not dist.is_initialized():
        dist.init_process_group("smddp", timeout=datetime.timedelta(seconds=60))
    assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
    assert (smddp_tf.rank(), smddp_tf.size()) == (rank, size)
    assert dist.get_backend() == "smddp"


def _own(*shape, dtype=torch.float32):
    return torch.full(shape, rank + 1, dtype=dtype)


def _called(function, *arguments, **named):
    """Calls it twice, on the calling thread and with async_op; both must do the same."""
    function(*arguments, **named)
    work = function(*arguments, **named, async_op=True)
    assert work.wait()
    assert work.is_completed() and work.is_success() and work.exception() is None
    return work


@without_init
def reductions():
    """All dtypes and operations, in place, sync and async."""
    _start()
    for dtype in DTYPES:
        for wait in (False, True):
            tensor = _own(37, 3, dtype=dtype)
            work = dist.all_reduce(tensor, async_op=wait)
            if wait:
                work.wait()
            assert torch.equal(tensor, torch.full_like(tensor, SUM)), (dtype, wait)
    op = dist.ReduceOp
    expected = {
        op.MIN: 1,
        op.MAX: size,
        op.AVG: (size + 1) / 2,
        op.PRODUCT: [1, 2, 6, 24][size - 1],
    }
    for kind, value in expected.items():
        tensor = _own(5)
        dist.all_reduce(tensor, kind)
        assert torch.equal(tensor, torch.full_like(tensor, value)), kind
    bits = torch.tensor([1 << rank, 7, 1 << rank])
    for kind, value in ((op.BOR, (1 << size) - 1), (op.BAND, 0), (op.BXOR, (1 << size) - 1)):
        tensor = bits.clone()
        dist.all_reduce(tensor, kind)
        assert tensor.tolist()[::2] == [value, value], kind
    for kind in (op.SUM, op.MAX, op.BOR, op.MIN, op.PRODUCT, op.BAND, op.BXOR):
        some = torch.tensor([rank == 0, True, False, rank != 0])
        dist.all_reduce(some, kind)
        if kind in (op.SUM, op.MAX, op.BOR):
            expected_bools = [True, True, False, size > 1]
        elif kind == op.BXOR:
            expected_bools = [True, size % 2 == 1, False, size % 2 == 0]
        else:
            expected_bools = [size == 1, True, False, False]
        assert some.tolist() == expected_bools, kind
        assert some.view(torch.uint8).max() <= 1, kind
    short = torch.tensor([30000, -30000, 300, rank - 5], dtype=torch.int16)
    for kind in (op.SUM, op.PRODUCT, op.MIN, op.MAX):
        tensor, whole = short.clone(), [torch.zeros_like(short) for _ in range(size)]
        dist.all_reduce(tensor, kind)
        dist.all_gather(whole, short)
        combine = {op.SUM: torch.add, op.PRODUCT: torch.mul, op.MIN: torch.minimum}
        wrapped = functools.reduce(combine.get(kind, torch.maximum), whole)
        assert torch.equal(tensor, wrapped), kind
    part = torch.zeros(2, dtype=torch.bool)
    dist.reduce_scatter_tensor(part, torch.arange(2 * size) == 2 * rank)
    assert part.tolist() == [True, False]
    wave = torch.complex(_own(3), -_own(3))
    dist.all_reduce(wave)
    assert torch.equal(wave, torch.full((3,), complex(SUM, -SUM)))
    image = _own(2, 3, 4, 5).to(memory_format=torch.channels_last)
    dist.all_reduce(image)
    assert torch.equal(image, torch.full_like(image, SUM))
    for root in range(size):
        tensor = _own(4)
        dist.reduce(tensor, root)
        assert torch.equal(tensor, torch.full((4,), float(SUM if rank == root else rank + 1)))
    tensors = [_own(3), _own(5)]
    with dist._coalescing_manager(async_ops=True) as works:
        for tensor in tensors:
            dist.all_reduce(tensor)
    works.wait()
    assert [tensor[0].item() for tensor in tensors] == [SUM, SUM]
    report(done=True)


@without_init
def together(names):
    """Several of these functions, in one job."""
    for name in names:
        globals()[name]()


@without_init
def many_at_once():
    """Hundreds under way at the same time, waited for in another order; futures and callbacks."""
    _start()
    tensors = [torch.full((1 + 100 * i,), float(rank + i)) for i in range(200)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    for i, tensor in enumerate(tensors):
        expected = float(sum(other + i for other in range(size)))
        assert torch.equal(tensor, torch.full_like(tensor, expected)), i
    ones = torch.ones(3)
    future = dist.all_reduce(ones, async_op=True).get_future()
    assert future.then(lambda one: one.value()[0] * 2).wait().tolist() == 3 * [2.0 * size]
    late = dist.all_reduce(ones, async_op=True)
    late.wait()
    assert torch.equal(late.get_future().wait()[0], late.result()[0])
    report(done=True)


@without_init
def moves():
    """Broadcast, gathers, scatters and exchanges, also of sizes that differ."""
    _start()
    everyone = range(size)
    for root in everyone:
        for dtype in (torch.float32, torch.bool, torch.complex64, torch.float8_e5m2):
            tensor = torch.full((2, 3), float(rank % 2)).to(dtype)
            _called(dist.broadcast, tensor, root)
            assert torch.equal(tensor.float(), torch.full((2, 3), float(root % 2))), dtype
    lists = [torch.empty(2, 3) for _ in everyone]
    _called(dist.all_gather, lists, _own(2, 3))
    assert all(torch.equal(lists[r], torch.full((2, 3), r + 1.0)) for r in everyone)
    lists = [torch.empty(r + 1, 2) for r in everyone]
    _called(dist.all_gather, lists, _own(rank + 1, 2))
    assert all(torch.equal(lists[r], torch.full((r + 1, 2), r + 1.0)) for r in everyone)
    whole = torch.empty(size * 4)
    _called(dist.all_gather_into_tensor, whole, _own(4))
    assert torch.equal(whole, torch.arange(1.0, size + 1).repeat_interleave(4))
    part = torch.empty(3)
    _called(dist.reduce_scatter_tensor, part, torch.arange(3.0 * size) * (rank + 1))
    assert torch.equal(part, SUM * torch.arange(3.0 * size)[3 * rank : 3 * rank + 3])
    part = torch.empty(rank + 2)
    _called(dist.reduce_scatter, part, [torch.full((r + 2,), r + rank + 1.0) for r in everyone])
    assert torch.equal(part, torch.full((rank + 2,), float(SUM + size * rank)))
    for root in everyone:
        lists = [torch.empty(3) for _ in everyone] if rank == root else None
        _called(dist.gather, _own(3), lists, root)
        assert rank != root or all(
            torch.equal(lists[r], torch.full((3,), r + 1.0)) for r in everyone
        )
        out = torch.empty(3)
        given = [torch.full((3,), r + 10.0 * root) for r in everyone] if rank == root else None
        _called(dist.scatter, out, given, root)
        assert torch.equal(out, torch.full((3,), rank + 10.0 * root))
    dist.barrier()
    assert dist.barrier(async_op=True).wait()
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    assert objects == [{"rank": r, "text": "x" * r} for r in everyone]
    report(done=True)


@without_init
def exchanges():
    """all_to_all in its forms."""
    _start()
    everyone = range(size)
    out = torch.empty(2 * size, 3)
    _called(dist.all_to_all_single, out, torch.arange(6.0 * size).view(-1, 3) + 1000 * rank)
    rows = [
        torch.arange(6.0 * size).view(-1, 3)[2 * rank : 2 * rank + 2] + 1000 * r for r in everyone
    ]
    assert torch.equal(out, torch.cat(rows))
    sent, got = [rank + r for r in everyone], [r + rank for r in everyone]
    out = torch.empty(sum(got), dtype=torch.int64)
    given = torch.full((sum(sent),), rank)
    _called(dist.all_to_all_single, out, given, got, sent)
    assert out.tolist() == [r for r in everyone for _ in range(r + rank)]
    lists = [torch.empty(r + rank + 1) for r in everyone]
    _called(dist.all_to_all, lists, [torch.full((r + rank + 1,), rank + 0.5) for r in everyone])
    assert all(torch.equal(lists[r], torch.full((r + rank + 1,), r + 0.5)) for r in everyone)
    report(done=True)


@without_init
def between_two():
    """Send and recv need no third rank."""
    _start()
    if rank < 2:
        tensor = _own(3) if rank == 0 else torch.empty(3)
        dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
        assert tensor.tolist() == [1.0, 1.0, 1.0]
    dist.barrier()
    after, before = (rank + 1) % size, (rank - 1) % size
    got = torch.empty(2)
    pair = [dist.P2POp(dist.isend, _own(2), after), dist.P2POp(dist.irecv, got, before)]
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    assert got.tolist() == [before + 1.0] * 2
    report(done=True)


@without_init
def shapes():
    """Shapes that differ and are accepted: ones anywhere; any, where only elements must agree."""
    _start()
    shape = [(), (1,), (1, 1)][rank % 3]
    for dtype in (torch.float32, torch.bool):
        number = torch.full(shape, 1, dtype=dtype)
        dist.all_reduce(number)
        assert number.shape == shape and number.item() == (1 if dtype is torch.bool else size)
    row = _own(*[(4,), (1, 4), (4, 1)][rank % 3])
    dist.all_reduce(row)
    assert row.flatten().tolist() == 4 * [SUM]
    sent = torch.arange(6.0).reshape([(6,), (2, 3), (3, 2)][rank % 3]) * (rank == 0)
    dist.broadcast(sent, 0)
    assert sent.flatten().tolist() == list(range(6))
    report(done=True)


@without_init
def groups():
    """Some of the ranks, in a process set or in a group alone; all of them again; a second life."""
    _start()
    pair = [0, size - 1]
    smddp_tf.add_process_set(pair)
    ours = dist.new_group(pair)
    theirs = dist.new_group([0, 1])
    every = dist.new_group(list(range(size)))
    for _ in range(3):
        for group, members in ((ours, pair), (theirs, [0, 1]), (every, range(size))):
            if rank in members:
                tensor = _own(3)
                dist.all_reduce(tensor, group=group)
                assert tensor[0].item() == sum(r + 1 for r in members), members
    if rank in pair:
        tensor = _own(3)
        dist.broadcast(tensor, size - 1, group=ours)
        assert tensor[0].item() == size
    kinds = [
        type(group).__name__
        for group in (ours, theirs, every)
        if isinstance(group, dist.ProcessGroup)
    ]
    dist.destroy_process_group()
    # On the old port a rank may still find the store that rank 0 is about to close.
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
    dist.init_process_group("smddp")
    tensor = _own(3)
    dist.all_reduce(tensor)
    assert tensor[0].item() == SUM
    report(kinds=kinds)


@without_init
def functional():
    """The collectives that compilers trace, and DTensor."""
    import torch.distributed._functional_collectives as functions
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    _start()
    world = dist.group.WORLD
    assert functions.all_reduce(_own(4), "sum", world)[0].item() == SUM
    assert functions.all_gather_tensor(_own(2), 0, world)[-1].item() == size
    assert functions.reduce_scatter_tensor(_own(2 * size), "sum", 0, world)[0].item() == SUM
    mesh = init_device_mesh(torch.get_default_device().type, (size,))
    whole = torch.arange(24.0).view(12, 2)
    tensor = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal(tensor.redistribute(mesh, [Replicate()]).to_local(), whole)
    report(done=True)
