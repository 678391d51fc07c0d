"""What other ranks_*.py do, on a GPU: PyTorch then makes all tensors there."""

import importlib
import os

import torch
import torch.distributed as dist
from harness import rank, report, size, without_init

import smddp_tf
import smddp_tf.torch  # noqa: F401 - registers the backend


def choose_host() -> None:
    """Has NCCL connect ranks of one GPU: it does if it takes them for ranks of several hosts."""
    if size > torch.cuda.device_count():
        os.environ["NCCL_HOSTID"] = f"host of rank {rank}"
    torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.set_default_device("cuda")


@without_init
def run(calls):
    """Calls functions, given as [module, name, arguments], in one job."""
    choose_host()
    for module, name, arguments in calls:
        getattr(importlib.import_module(module), name)(**arguments)
        if dist.is_initialized():
            dist.barrier()
    stats = smddp_tf.stats()
    report(nccl=stats["nccl"], nccl_collectives=stats["nccl_collectives"])


@without_init
def call(of):
    """Calls one function, which reports by itself."""
    choose_host()
    getattr(importlib.import_module(of["module"]), of["name"])(**of["arguments"])


@without_init
def late_streams():
    """Results do not depend on how late the caller's stream is, nor on which one it is."""
    choose_host()
    dist.init_process_group("smddp")
    matrix = torch.eye(4096)
    expected = sum(range(1, size + 1))

    def late(value):
        """A tensor that the stream has only after milliseconds."""
        made = torch.full((4096, 4096), float(value))
        for _ in range(8):
            made = made @ matrix
        return made

    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            for _ in range(3):
                reduced = late(rank + 1)
                work = dist.all_reduce(reduced, async_op=True)
                lists = [torch.empty(4096, 4096) for _ in range(size)]
                other = dist.all_gather(lists, late(rank + 1), async_op=True)
                future = dist.all_reduce(late(rank + 1)[0], async_op=True).get_future()
                doubled = future.then(lambda done: done.value()[0] * 2)
                work.wait()
                reduced += 1
                assert torch.equal(reduced, torch.full_like(reduced, expected + 1))
                other.wait()
                for r in range(size):
                    assert torch.equal(lists[r], torch.full_like(lists[r], r + 1)), r
                assert torch.equal(doubled.wait(), torch.full((4096,), 2.0 * expected))
    report(done=True)


@without_init
def devices_differ():
    """Tensors of a CPU and of a GPU, in one list and on two ranks."""
    choose_host()
    dist.init_process_group("smddp")
    here, there = torch.ones(3), torch.ones(3, device="cpu")
    try:
        dist.all_reduce_coalesced([here, there])
    except ValueError as error:
        assert f"takes tensors on one device, not on {here.device} and cpu" in str(error), error
    else:
        raise AssertionError("two devices in one call")
    try:
        dist.all_reduce(here if rank == 0 else there)
    except dist.DistBackendError as error:
        assert "in cuda memory" in str(error), error
    else:
        raise AssertionError("ranks have tensors on different devices")
    dist.all_reduce(here)
    assert here.tolist() == [size] * 3
    report(done=True)
