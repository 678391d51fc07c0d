"""Groups of some of the ranks, which their members make alone. Values differ by rank, exactly."""

import datetime
import os
import signal
import threading
import time

import torch
import torch.distributed as dist
from harness import rank, report, size, without_init

import smddp_tf
import smddp_tf.torch  # noqa: F401 - registers the backend

LAST = size - 1


def _start():
    dist.init_process_group("smddp", timeout=datetime.timedelta(seconds=60))


def _own(*shape, dtype=torch.float32):
    return torch.full(shape, rank + 1, dtype=dtype)


def _assert_collectives(group, members) -> None:
    """All kinds of collectives on a group of these ranks of the job."""
    values, place, count = [r + 1 for r in members], members.index(rank), len(members)
    assert type(group).__name__ == "SmddpProcessGroup"
    assert (dist.get_rank(group), dist.get_world_size(group)) == (place, count)
    works = []
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        reduced = _own(3, dtype=dtype)
        works.append((dist.all_reduce(reduced, group=group, async_op=True), reduced))
    for work, reduced in works:
        work.wait()
        assert reduced.tolist() == 3 * [sum(values)]
    gathered = [torch.empty(2) for _ in members]
    dist.all_gather(gathered, _own(2), group=group)
    assert [one.tolist() for one in gathered] == [[value, value] for value in values]
    part = torch.empty(2)
    dist.reduce_scatter_tensor(part, torch.arange(2.0 * count) * (rank + 1), group=group)
    assert part.tolist() == [(2 * place + i) * sum(values) for i in range(2)]
    received = torch.empty(count)
    dist.all_to_all_single(received, _own(count), group=group)
    assert received.tolist() == values
    sent = _own(3)
    dist.broadcast(sent, members[-1], group=group)
    assert sent.tolist() == 3 * [values[-1]]
    here = [torch.empty(1) for _ in members] if place == 0 else None
    dist.gather(_own(1), here, dst=members[0], group=group)
    assert here is None or [one.item() for one in here] == values
    objects = [None] * count
    dist.all_gather_object(objects, f"rank {rank}", group=group)
    assert objects == [f"rank {member}" for member in members]
    if place < 2 <= count:
        tensor = _own(2) if place == 0 else torch.empty(2)
        if place == 0:
            dist.send(tensor, members[1], group=group)
        else:
            dist.recv(tensor, members[0], group=group)
        assert tensor.tolist() == 2 * [values[0]]
    dist.barrier(group=group)


@without_init
def overlapping():
    """Rows, columns, one rank alone and the outer ones, all beside each other and the world."""
    _start()
    lists = [[r for r in range(size) if r % 2 == odd] for odd in (0, 1)]
    lists += [[r for r in range(size) if r // 2 == half] for half in range((size + 1) // 2)]
    lists += [[0, LAST], [1]]
    groups = [dist.new_group(members) for members in lists]
    for _ in range(2):
        for members, group in zip(lists, groups, strict=True):
            if rank in members:
                _assert_collectives(group, members)
        world = _own(5)
        dist.all_reduce(world)
        assert world.tolist() == 5 * [size * (size + 1) / 2]
    report(sets=smddp_tf.stats()["process_sets"], own=sum(rank in one for one in lists))


@without_init
def made_again():
    """What is destroyed on all members serves the next group; none of it disturbs process sets."""
    _start()
    pair = [0, LAST]
    counts = []
    for _ in range(3):
        group = dist.new_group(pair)
        if rank in pair:
            _assert_collectives(group, pair)
            dist.destroy_process_group(group)
        counts.append(smddp_tf.stats()["process_sets"])
    kept, group = dist.new_group(pair), dist.new_group(pair)
    if rank in pair:
        _assert_collectives(kept, pair)
        _assert_collectives(group, pair)
        if rank == 0:
            dist.destroy_process_group(group)
    counts.append(smddp_tf.stats()["process_sets"])
    group = dist.new_group(pair)  # the other one has not left it
    if rank in pair:
        _assert_collectives(group, pair)
    counts.append(smddp_tf.stats()["process_sets"])
    same = smddp_tf.add_process_set(pair)  # by all ranks
    if rank in pair:
        assert smddp_tf.torch.allreduce(_own(2), op=smddp_tf.Sum, process_set=same)[0] == size + 1
    smddp_tf.remove_process_set(same)
    dist.destroy_process_group()
    report(counts=counts)


@without_init
def local():
    """Each rank calls new_group() for its own group alone; others are in no order that it has."""
    _start()
    mine = [r for r in range(size) if r % 2 == rank % 2]
    for _ in range(1 + rank % 2):
        group = dist.new_group(mine, use_local_synchronization=True)
        _assert_collectives(group, mine)
    dist.barrier()
    report(done=True)


@without_init
def not_sorted():
    """Ranks in an order of the script's, where new_group() keeps it."""
    _start()
    for order in ([LAST, 0], list(reversed(range(size)))):
        group = dist.new_group(order, sort_ranks=False)
        if rank in order:
            gathered = [torch.empty(1) for _ in order]
            dist.all_gather(gathered, _own(1), group=group)
            assert [int(one) - 1 for one in gathered] == order
    report(done=True)


@without_init
def fails(how):
    """The last rank does not make the group that rank 0 waits for. What each raises, and when."""
    _start()
    dist.barrier()
    pair, start = [0, LAST], time.monotonic()
    kind = text = ""
    if rank == LAST and how in ("killed", "left"):
        time.sleep(0.5)
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return
    limit = datetime.timedelta(seconds=1) if how == "late" else None
    try:
        if how == "other":
            dist.new_group([1, LAST] if rank == LAST else pair, timeout=limit)
        elif rank != LAST:
            dist.new_group(pair, timeout=limit)
        if how != "left":
            dist.all_reduce(torch.ones(3))
    except Exception as error:
        kind, text = type(error).__name__, str(error)
    report(kind=kind, text=text, seconds=time.monotonic() - start)


@without_init
def goes_on():
    """After a failed new_group() all begin anew, and groups of that name find each other."""
    pair = [0, LAST]
    _start()
    dist.barrier()
    kind = ""
    try:
        if rank != LAST:
            dist.new_group(pair, timeout=datetime.timedelta(seconds=1))
        dist.all_reduce(torch.ones(3))
    except dist.DistBackendError as error:
        kind = type(error).__name__
    dist.destroy_process_group()
    _start()
    group = dist.new_group(pair, timeout=datetime.timedelta(seconds=20))
    if rank in pair:
        _assert_collectives(group, pair)
    report(kind=kind)


@without_init
def interrupted(where):
    """Rank 0 gets SIGINT while it waits for the last rank, to begin or in new_group()."""
    if where == "new_group":
        _start()
        dist.barrier()
    if rank == 0:
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    if rank == LAST:
        time.sleep(3)
    start = time.monotonic()
    kind = text = ""
    try:
        if where == "new_group":
            dist.new_group([0, LAST])
        else:
            _start()
    except BaseException as error:
        kind, text = type(error).__name__, str(error)
    report(kind=kind, text=text, seconds=time.monotonic() - start)
