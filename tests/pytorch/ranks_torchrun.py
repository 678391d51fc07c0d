"""Ranks that torchrun, or the script itself, has started."""

import datetime
import os
import pathlib
import socket
import sys
import time

from harness import rank, report, size, without_init


def _start(**options):
    import torch.distributed as dist

    import smddp_tf.torch  # noqa: F401 - registers the backend

    dist.init_process_group("smddp", timeout=datetime.timedelta(seconds=60), **options)


def _sums(rank, size) -> list:
    """Of values that differ by rank, and are exact."""
    import torch
    import torch.distributed as dist

    values = torch.tensor([1.0, 2.0, 4.0]) * (rank + 1)
    dist.all_reduce(values)
    assert values.tolist() == [count * size * (size + 1) / 2 for count in (1, 2, 4)]
    return values.tolist()


@without_init
def twice():
    """All groups end; others follow in the same job, which has no MPI."""
    import torch.distributed as dist

    import smddp_tf

    _start()
    _sums(rank, size)
    dist.destroy_process_group()
    _start()
    assert not smddp_tf.mpi_enabled()
    assert smddp_tf.local_size() == size
    report(sums=_sums(rank, size))


@without_init
def refused(variables):
    """Some ranks have other variables: rank -> name -> value. What each raises."""
    os.environ.update(variables.get(str(rank), {}))
    try:
        _start()
    except Exception as error:
        report(kind=type(error).__name__, text=str(error))
    else:
        report(kind="", text="nothing was raised")


@without_init
def fails_at_first(folder):
    """The last rank ends in the first attempt, between two collectives."""
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    _start()
    _sums(rank, size)
    if attempt == 0:
        if rank == size - 1:
            os._exit(3)
        _sums(rank, size)  # raises, or torchrun ends this rank first
    (pathlib.Path(folder) / f"attempt{attempt}.{rank}").touch()
    report(sums=_sums(rank, size))


@without_init
def loses_a_host(folder):
    """Sums until a rank is lost. Those that torchrun then starts again are fewer."""
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    _start()
    sums = _sums(rank, size)
    (pathlib.Path(folder) / f"attempt{attempt}.{rank}").touch()
    while attempt == 0:
        _sums(rank, size)
        time.sleep(0.05)
    report(sums=sums, size=size)


def _spawned(rank, size, port, folder) -> None:
    _start(rank=rank, world_size=size, init_method=f"tcp://127.0.0.1:{port}")
    _sums(rank, size)
    (pathlib.Path(folder) / f"spawned{rank}").touch()


@without_init
def spawns(folder, ranks):
    """This process is no rank; it starts them by torch.multiprocessing."""
    import torch.multiprocessing

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    sys.modules["__main__"].__spec__ = None  # children import this module, not the harness
    torch.multiprocessing.spawn(_spawned, (ranks, port, folder), ranks)
