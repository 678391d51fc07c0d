"""Ranks that disagree, give what cannot be used, or die."""

import datetime
import os
import signal
import time

import torch
import torch.distributed as dist
from caught import error_of
from harness import rank, report, size, without_init
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import smddp_tf.torch as hvd

LAST = size - 1


def _start():
    dist.init_process_group("smddp", timeout=datetime.timedelta(seconds=60))


def _goes_on() -> None:
    ones = torch.ones(3)
    dist.all_reduce(ones)
    assert ones.tolist() == 3 * [float(size)]


def _waited(function, *arguments, **named):
    """The same with async_op, waited for."""
    return lambda: function(*arguments, **named, async_op=True).wait()


@without_init
def disagree():
    """The last rank calls something else than the others: both sides are shown on all ranks."""
    _start()
    odd = rank == LAST
    op = dist.ReduceOp
    cases = {
        "shape": (_waited(dist.all_reduce, torch.ones(3 + odd)), "[float32 [3]]", "[float32 [4]]"),
        "transposed": (
            lambda: dist.all_reduce(torch.ones((3, 1, 2) if odd else (2, 3))),
            "[float32 [2, 3]]",
            "[float32 [3, 2]]",
        ),
        "dtype": (
            lambda: dist.all_reduce(torch.ones(3, dtype=torch.int32 if odd else torch.int64)),
            "[int64 [3]]",
            "[int32 [3]]",
        ),
        "op": (
            lambda: dist.all_reduce(torch.ones(3), op.MAX if odd else op.MIN),
            "op=Min",
            "op=Max",
        ),
        "root": (lambda: dist.broadcast(torch.ones(3), int(odd)), "root_rank=0", "root_rank=1"),
        "kind": (
            lambda: dist.broadcast(torch.ones(3), 0) if odd else dist.all_reduce(torch.ones(3)),
            "allreduce",
            "broadcast",
        ),
        "order": (
            lambda: dist.all_reduce(
                torch.ones(2, 2, 2, 2).to(
                    memory_format=torch.channels_last if odd else torch.contiguous_format
                )
            ),
            "op=Sum]",
            "channels_last",
        ),
        "bytes": (  # bools travel as uint8
            lambda: dist.all_reduce(
                torch.ones(3, dtype=torch.bool if odd else torch.uint8), dist.ReduceOp.MAX
            ),
            "of torch.bool",
        ),
        "splits": (
            lambda: dist.all_to_all_single(
                torch.empty(size + odd), torch.ones(size), [1 + odd] + (size - 1) * [1]
            ),
            f"rank 0 sends 1 elements to rank {LAST}",
            "room for 2",
        ),
    }
    if size == 2:  # of three the message may show two sides that agree
        cases["counts"] = (
            lambda: dist.all_gather(
                [torch.empty(1 + 4 * odd), torch.empty(2)], torch.ones(rank + 1)
            ),
            "elements=[1, 2]",
            "elements=[5, 2]",
        )
        lists = None if odd else [torch.empty(3), torch.empty(3)]
        cases["gather"] = (
            lambda: dist.gather(torch.empty(3 + odd), lists),
            "elements=3",
            "elements=4",
        )
    for name, (function, *sides) in cases.items():
        kind, text = error_of(function)
        assert kind == "DistBackendError", (name, kind, text)
        assert "of group 0" in text, text
        assert all(side in text for side in sides), (name, sides, text)
        _goes_on()
    report(done=True)


@without_init
def bad_input():
    """What cannot be used, on all ranks and on the last one alone."""
    _start()
    op = dist.ReduceOp
    good = torch.ones(3)
    strided = torch.ones(3, 2)[:, 0]
    mesh = init_device_mesh("cpu", (size,))
    divided = DTensor.from_local(torch.ones(3), mesh, [Shard(0)])
    cases = {
        "sparse": (lambda: dist.all_reduce(torch.ones(2, 2).to_sparse_csr()), "to_dense()"),
        "strided": (_waited(dist.all_reduce, strided), "strides (2,)"),
        "no reduction": (
            lambda: dist.all_reduce(torch.tensor([True]), op.AVG),
            "has no AVG of torch.bool; SUM",
        ),
        "float8": (
            lambda: dist.all_reduce(torch.ones(2).to(torch.float8_e4m3fn)),
            "has no SUM of torch.float8_e4m3fn",
        ),
        "device": (lambda: dist.all_reduce(torch.ones(3, device="meta")), "not on meta"),
        "DTensor": (lambda: dist.all_reduce(divided.clone()), "to_local()"),
        "mixed": (
            lambda: dist.all_reduce_coalesced([torch.ones(1), torch.ones(1, device="meta")]),
            "not on meta",
        ),
        "output": (
            lambda: dist.all_gather_into_tensor(torch.empty(size * 3 + 1), good),
            f"has {size * 3 + 1} elements; it must have {size * 3}",
        ),
        "count": (
            lambda: dist.all_gather([torch.empty(3)] * (size + 1), good),
            f"takes {size} tensors, one for each rank, not {size + 1}",
        ),
        "rows": (
            lambda: dist.all_to_all_single(torch.empty(size + 1), torch.ones(size + 1)),
            "do not divide; give split sizes",
        ),
    }
    kind, text = error_of(lambda: hvd.broadcast(divided, 0))  # which is matched by name
    assert (kind, "to_local()" in text) == ("BadInputError", True), (kind, text)
    for name, (function, words) in cases.items():
        kind, text = error_of(function)
        assert (kind, words in text) == ("BadInputError", True), (name, kind, text)
        _goes_on()
        kind, text = error_of(function if rank == LAST else _waited(dist.all_reduce, good.clone()))
        assert kind == "DistBackendError", (name, kind, text)
        assert words in text and f"rank {LAST}" in text and "allreduce" in text, (name, text)
        _goes_on()
    report(done=True)


@without_init
def killed(how):
    """The last rank is killed while the others wait for it."""
    _start()
    ones = torch.ones(1000)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 10))
    for _ in range(2):
        dist.all_reduce(ones)
        model(torch.ones(2, 10)).sum().backward()
    if rank == LAST:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    functions = {
        "sync": lambda: dist.all_reduce(ones),
        "async": _waited(dist.all_reduce, ones),
        "backward": lambda: model(torch.ones(2, 10)).sum().backward(),
    }
    start = time.monotonic()
    kind, text = error_of(functions[how])
    report(kind=kind, text=text, seconds=time.monotonic() - start - 0.5)


@without_init
def another_world():
    """Torch is told of other ranks than the launcher's."""
    kind, text = error_of(
        lambda: dist.init_process_group(
            "smddp", store=dist.HashStore(), rank=0 if rank else 1, world_size=size + 1
        )
    )
    report(kind=kind, text=text)
