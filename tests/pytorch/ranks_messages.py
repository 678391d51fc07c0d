"""Messages between two ranks. What is sent tells who sent it, to whom, and as which message."""

import datetime
import gc
import os
import random
import signal
import threading
import time

import torch
import torch.distributed as dist
from caught import error_of
from harness import rank, report, size, without_init

import smddp_tf.torch  # noqa: F401 - registers the backend
from smddp_tf.torch import _messages

LAST = size - 1


def _start(seconds=60, carrier=_messages.Messages):
    dist.init_process_group("smddp", timeout=datetime.timedelta(seconds=seconds))
    kind = dist.group.WORLD._get_backend(torch.device("cpu"))._connections()._carrier
    assert isinstance(kind, carrier), kind


def _content(number, source, target, elements, dtype):
    return torch.full((elements,), (number * 9 + source * 3 + target) % 100, dtype=dtype)


def _program(draw):
    """Messages of one round, the same on all ranks: source, target, tag, elements, dtype."""
    dtypes = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
    for number in range(draw.choice([3, 20, 120])):
        source, target = draw.sample(range(size), 2)
        elements = draw.choice([0, 1, 100, 70_000, 1_500_000 if number < 5 else 1])
        yield number, source, target, draw.randrange(3), elements, draw.choice(dtypes)


def _in_some_order(messages, own):
    """A rank's messages in an order of its own, which only keeps that of a pair and a tag."""
    queues: dict = {}
    for message in messages:
        queues.setdefault(message[1:4], []).append(message)
    while queues:
        key = own.choice(list(queues))
        yield queues[key].pop(0)
        if not queues[key]:
            del queues[key]


@without_init
def programs(seeds):
    """Random messages at once, some of them never waited for, with collectives between them."""
    _start()
    for seed in range(seeds):
        draw, own = random.Random(seed), random.Random(seed * 100 + rank)
        messages = [one for one in _program(draw) if rank in one[1:3]]
        works, received = [], []
        for number, source, target, tag, elements, dtype in _in_some_order(messages, own):
            expected = _content(number, source, target, elements, dtype)
            if source == rank:
                work = dist.isend(expected, target, tag=tag)
                if own.random() < 0.5:
                    works.append(work)
            else:
                tensor = torch.zeros(elements, dtype=dtype)
                works.append(dist.irecv(tensor, source, tag=tag))
                received.append((tensor, expected))
            del expected  # what is sent stays in memory without the script's help
        if seed % 3 == 0:
            ones = torch.ones(5)
            dist.all_reduce(ones)
            assert ones.tolist() == 5 * [float(size)]
        gc.collect()
        own.shuffle(works)
        for work in works:
            if own.random() < 0.3:
                while not work.is_completed():
                    time.sleep(0)
            assert work.wait() and work.is_success()
        for i, (tensor, expected) in enumerate(received):
            assert torch.equal(tensor, expected), (seed, i)
        dist.barrier()
    while any(not work.is_completed() for work in tuple(_messages._under_way)):
        time.sleep(0.001)
    assert not _messages._under_way
    report(done=True)


@without_init
def details():
    """Any source, tags, views that do not lie side by side, more room than is needed."""
    _start()
    if rank == 0:
        seen = set()
        for _ in range(1, size):
            tensor = torch.zeros(3)
            source = dist.recv(tensor, tag=7)
            assert tensor.tolist() == [source] * 3
            seen.add(source)
        assert seen == set(range(1, size))
    else:
        dist.send(torch.full((3,), float(rank)), 0, tag=7)
    numbers = torch.arange(6.0).view(2, 3)
    if rank == 0:
        dist.send(numbers.t(), LAST)
        dist.send(-numbers * 1j, LAST)
        second = dist.isend(torch.ones(2), LAST, tag=2)
        dist.send(torch.zeros(2), LAST, tag=1)
        second.wait()
        dist.send_object_list(["object", {"a": 1}], LAST)
    elif rank == LAST:
        target = torch.zeros(3, 4)[:, ::2]
        dist.recv(target, 0)
        assert torch.equal(target, numbers.t())
        target = torch.zeros(2, 3, dtype=torch.complex64)
        dist.recv(target, 0)
        assert torch.equal(target, -numbers * 1j)
        early, late = torch.zeros(2), torch.full((4,), 5.0)
        dist.recv(early, 0, tag=1)
        dist.recv(late, 0, tag=2)
        assert early.tolist() == [0, 0] and late.tolist() == [1, 1, 5, 5]
        objects = [None, None]
        dist.recv_object_list(objects, 0)
        assert objects == ["object", {"a": 1}]
    dist.barrier()
    _several_threads()
    _group_that_is_left()
    report(done=True)


def _several_threads():
    """Each with messages of its own, both ways."""
    if rank > 1:
        return
    failures = []

    def talk(tag):
        for i in range(50):
            tensor = torch.zeros(tag * 100 + 1)
            pair = [
                dist.P2POp(dist.isend, torch.full_like(tensor, i + tag + rank), 1 - rank, tag=tag),
                dist.P2POp(dist.irecv, tensor, 1 - rank, tag=tag),
            ]
            for work in dist.batch_isend_irecv(pair):
                work.wait()
            if not torch.equal(tensor, torch.full_like(tensor, i + tag + 1 - rank)):
                failures.append((tag, i))

    threads = [threading.Thread(target=talk, args=(tag,)) for tag in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def _group_that_is_left():
    """Its messages end with it, and do not come in another group's."""
    for value in (1.0, 2.0):
        group = dist.new_group([0, 1])
        if rank == 0 and value == 1:
            lost = dist.isend(torch.zeros(1), 1, group=group)
        if rank == 0 and value == 2:
            dist.send(torch.full((1,), value), 1, group=group)
        if rank == 1 and value == 2:
            tensor = torch.zeros(1)
            dist.recv(tensor, 0, group=group)
            assert tensor.item() == value
        dist.barrier()
        if rank < 2:
            dist.destroy_process_group(group)
        if rank == 0 and value == 1:
            kind, text = error_of(lost.wait)
            assert kind == "DistBackendError" and "withdrawn" in text, (kind, text)


@without_init
def by_gloo():
    """Around all ranks."""
    _start(carrier=dist.ProcessGroupGloo)
    got = torch.empty(2)
    pair = [
        dist.P2POp(dist.isend, torch.full((2,), float(rank)), (rank + 1) % size),
        dist.P2POp(dist.irecv, got, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    assert got.tolist() == [(rank - 1) % size] * 2
    report(done=True)


@without_init
def errors():
    """What cannot be sent, or is not received, and limits of a wait; the job goes on."""
    _start()
    found = {}
    if rank == 0:
        found["long"] = error_of(lambda: dist.send(torch.ones(3), 1))
        found["sparse"] = error_of(lambda: dist.send(torch.eye(2).to_sparse(), 1))
        found["limit"] = error_of(
            lambda: dist.irecv(torch.ones(2), 1, tag=9).wait(datetime.timedelta(seconds=0.2))
        )
        dist.barrier()
        dist.send(torch.ones(2), 1)
    elif rank == 1:
        work = dist.irecv(torch.zeros(2), 0)
        found["short"] = error_of(work.wait)
        assert work.is_completed() and not work.is_success()
        assert str(work.exception()) == found["short"][1]
        dist.barrier()
        dist.send(torch.ones(2), 0, tag=9)
        dist.recv(torch.zeros(2), 0)
    else:
        dist.barrier()
    dist.barrier()
    report(found=found)


@without_init
def lost(how):
    """The last rank does not send what the first waits for."""
    _start(seconds=3 if how == "limit" else 60)
    dist.barrier()
    if rank == LAST:
        if how == "killed":
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "limit":
            time.sleep(8)
            os._exit(0)
        return report(kind="", text="", seconds=0)
    tensor = torch.zeros(2)
    began = time.monotonic()
    call = lambda: dist.recv(tensor, LAST if rank == 0 else 0)  # noqa: E731
    kind, text = error_of(call)
    report(kind=kind, text=text, seconds=time.monotonic() - began)
    os._exit(0)
