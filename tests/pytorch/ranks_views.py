"""Collectives of tensors that are views of others: side by side, in place, conjugated, negated."""

import torch
import torch.distributed as dist
from harness import rank, report, size, without_init

import smddp_tf.torch as hvd

EVERYONE = range(size)


def _start():
    hvd.init()
    dist.init_process_group("smddp")


def _numbers(of, length=3):
    return torch.arange(length) + 10.0 * (of + 1)


def _chunks(values):
    """Views side by side in one tensor, which is returned too."""
    whole = torch.cat(values)
    return list(whole.split([len(value) for value in values])), whole


@without_init
def side_by_side():
    """Lists of chunks are read and written where they are, and not beyond."""
    _start()
    room, whole = _chunks([torch.zeros(3) for _ in range(size + 2)])
    dist.all_gather(room[1:-1], _numbers(rank))
    expected = torch.cat([_numbers(one) for one in EVERYONE])
    assert torch.equal(whole, torch.cat([torch.zeros(3), expected, torch.zeros(3)]))
    room, whole = _chunks([torch.zeros(one + 1) for one in EVERYONE])
    dist.all_gather(room, _numbers(rank, rank + 1))
    assert torch.equal(whole, torch.cat([_numbers(one, one + 1) for one in EVERYONE]))
    sum_of_ranks = sum(one + 1 for one in EVERYONE)
    given, whole = _chunks([one + (rank + 1.0) * torch.ones(3) for one in EVERYONE])
    before, part = whole.clone(), torch.empty(3)
    dist.reduce_scatter(part, given)
    assert torch.equal(part, torch.full([3], float(sum_of_ranks + size * rank)))
    assert torch.equal(whole, before)
    given, whole = _chunks([(rank + 1.0) * torch.ones(one + 1) for one in EVERYONE])
    before, part = whole.clone(), torch.empty(rank + 1)
    dist.reduce_scatter(part, given)
    assert torch.equal(part, torch.full([rank + 1], float(sum_of_ranks)))
    assert torch.equal(whole, before)
    for root in EVERYONE:
        room, whole = _chunks([torch.zeros(3) for _ in EVERYONE])
        dist.gather(_numbers(rank), room if rank == root else None, root)
        assert torch.equal(whole, expected * (rank == root))
        given, _ = _chunks([_numbers(one) for one in EVERYONE])
        part = torch.empty(3)
        dist.scatter(part, given if rank == root else None, root)
        assert torch.equal(part, _numbers(rank))
    given, _ = _chunks([_numbers(size * rank + one) for one in EVERYONE])
    room, whole = _chunks([torch.zeros(3) for _ in EVERYONE])
    dist.all_to_all(room, given)
    assert torch.equal(whole, torch.cat([_numbers(size * one + rank) for one in EVERYONE]))
    report(done=True)


@without_init
def in_place():
    """What is read is a part of what is written, its own or another rank's; also backwards."""
    _start()
    expected = torch.cat([_numbers(one) for one in EVERYONE])
    for place in EVERYONE:
        room, whole = _chunks([torch.zeros(3) for _ in EVERYONE])
        room[place].copy_(_numbers(rank))
        dist.all_gather(room, room[place])
        assert torch.equal(whole, expected), place
        room, whole = _chunks([torch.zeros(3) for _ in EVERYONE])
        room[place].copy_(_numbers(rank))
        dist.gather(room[place], room if rank == size - 1 else None, size - 1)
        assert rank != size - 1 or torch.equal(whole, expected), place
        given, _ = _chunks([_numbers(one) for one in EVERYONE])
        dist.scatter(given[place], given if rank == 0 else None, 0)
        assert torch.equal(given[place], _numbers(rank)), place
        given, _ = _chunks([torch.full([3], one + rank + 1.0) for one in EVERYONE])
        dist.reduce_scatter(given[place], given)
        total = sum(rank + one + 1.0 for one in EVERYONE)
        assert torch.equal(given[place], torch.full([3], total)), place
    numbers, _ = _chunks([_numbers(size * rank + one) for one in EVERYONE])
    dist.all_to_all(numbers, numbers)
    assert torch.equal(torch.cat(numbers), torch.cat([_numbers(size * r + rank) for r in EVERYONE]))
    room, whole = _chunks([torch.zeros(3) for _ in EVERYONE])
    dist.all_gather(room[::-1], _numbers(rank))
    assert torch.equal(whole, torch.cat([_numbers(one) for one in reversed(EVERYONE)]))
    report(done=True)


@without_init
def lists():
    """Lists of tensors that lie apart, small and of many chunks; columns, and parts of others."""
    _start()
    for rows, columns in ((3, 5), (1024, 1100)):
        _gathered_and_scattered(rows, columns)
        _of_all(rows, columns)
    report(done=True)


def _gathered_and_scattered(rows, columns):
    own = torch.arange(rows * columns).view(rows, columns) + 2e6 * rank
    expected = [own - 2e6 * (rank - one) for one in EVERYONE]
    for root in EVERYONE:
        apart = [torch.empty(rows, columns) for _ in EVERYONE]
        apart[0] = torch.empty(columns, rows).t()
        for given, room in ((own, apart), (own.t().contiguous().t(), list(apart))):
            dist.gather(given, room if rank == root else None, root)
            assert rank != root or all(map(torch.equal, room, expected)), root
            part = torch.empty(rows, columns)
            dist.scatter(part, room if rank == root else None, root)
            assert torch.equal(part, own), root
        for place in EVERYONE:  # the one of the root, or one that another rank's takes
            room = [torch.empty(rows, columns) for _ in EVERYONE]
            room[place].copy_(own)
            dist.gather(room[place], room if rank == root else None, root)
            assert rank != root or all(map(torch.equal, room, expected)), (root, place)
            room = [one.clone() for one in expected]
            dist.scatter(room[place], room if rank == root else None, root)
            assert torch.equal(room[place], own), (root, place)


def _of_all(rows, columns):
    own = torch.arange(rows * columns).view(rows, columns) + 2e6 * rank
    expected = [own - 2e6 * (rank - one) for one in EVERYONE]
    for place in [None, *EVERYONE]:
        room = [torch.empty(rows, columns) for _ in EVERYONE]
        if place is not None:
            room[place].copy_(own)
        dist.all_gather(room, own if place is None else room[place])
        assert all(map(torch.equal, room, expected)), place
    # What a rank gives lies across two of the places.
    memory = torch.zeros(size * rows, columns)
    memory[1 : rows + 1] = own
    room = list(memory.chunk(size))
    dist.all_gather(room[::-1], memory[1 : rows + 1])
    assert all(map(torch.equal, room[::-1], expected))
    # From rank r to rank p: r rows and one more, of the number r * size + p.
    for in_place in (False, True):
        sent = [torch.full((rank + 1, columns), float(rank * size + p)) for p in EVERYONE]
        got = [torch.empty(r + 1, columns) for r in EVERYONE]
        if in_place:
            got[rank] = sent[rank]
        dist.all_to_all(got, sent)
        wanted = [torch.full((r + 1, columns), float(r * size + rank)) for r in EVERYONE]
        assert all(map(torch.equal, got, wanted)), in_place
    both = [own + p for p in EVERYONE]  # written while it is read
    dist.all_to_all(both, both)
    assert all(torch.equal(both[r], expected[r] + rank) for r in EVERYONE)


def _complex(of):
    return torch.tensor([1 + 2j, 3 - 4j]) * (of + 1)


def _negated(of, lazy):
    """-2 and 4, times `of` + 1: as a view of their negatives, or as they are."""
    view = torch._neg_view(_complex(of).imag.contiguous())  # as z.conj().imag is
    assert view.is_neg() and view.is_contiguous()
    return view if lazy else view.clone()


@without_init
def conjugated():
    """Views of the conjugate or the negative count as what they stand for, on each rank alone."""
    _start()
    lazy = rank % 2 == 0
    expected = [_complex(one).conj().resolve_conj() for one in EVERYONE]
    assert torch.equal(hvd.allgather(_complex(rank).conj()), torch.cat(expected))
    assert torch.equal(hvd.broadcast(_complex(rank).conj(), 1), expected[1])
    rows = hvd.alltoall(_complex(rank).conj().repeat(size))
    assert torch.equal(rows, torch.cat(expected))
    room = [torch.zeros(2, dtype=torch.complex64) for _ in EVERYONE]
    dist.gather(_complex(rank).conj(), room if rank == 0 else None)
    assert rank != 0 or all(map(torch.equal, room, expected))
    expected = [_negated(one, lazy=False) for one in EVERYONE]
    for operation, fold in ((dist.ReduceOp.SUM, torch.sum), (dist.ReduceOp.MAX, torch.amax)):
        numbers = _negated(rank, lazy)
        dist.all_reduce(numbers, operation)
        assert torch.equal(numbers, fold(torch.stack(expected), 0)), operation
    for root in EVERYONE:
        numbers = _negated(rank, lazy)
        dist.broadcast(numbers, root)
        assert torch.equal(numbers, expected[root]), root
    room = [torch.zeros(2) for _ in EVERYONE]
    dist.all_gather(room, _negated(rank, lazy))
    assert all(map(torch.equal, room, expected))
    part = torch.zeros(2)
    dist.reduce_scatter(part, [_negated(rank, lazy) for _ in EVERYONE])
    assert torch.equal(part, torch.stack(expected).sum(0))
    total = torch.stack(expected).sum(0)
    assert torch.equal(hvd.allreduce(_negated(rank, lazy), op=hvd.Sum), total)
    assert torch.equal(hvd.allreduce_(_negated(rank, lazy), op=hvd.Sum), total)
    assert torch.equal(hvd.reducescatter(_negated(rank, lazy).repeat(size), op=hvd.Sum), total)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], 1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, [("weight", weight)], op=hvd.Sum)
    numbers = torch.complex(torch.ones(1), weight).conj()
    loss = torch.view_as_real(numbers.resolve_conj()) if lazy else numbers.imag * 3
    loss.sum().backward()
    assert weight.grad.is_neg() == lazy
    optimizer.step()
    own = [-1.0 if one % 2 == 0 else -3.0 for one in EVERYONE]
    assert torch.equal(weight.data, -torch.tensor([sum(own)])), weight
    report(done=True)
