"""The backend "smddp" of torch.distributed."""

from __future__ import annotations

import os
import time
from typing import Any

import torch.distributed
from torch.distributed import DistBackendError
from torch.distributed.constants import default_pg_timeout

from smddp_tf._src.job import basics, config, job, process_sets, rendezvous
from smddp_tf.torch import _gloo, _store

NAME = "smddp"
_HEAR_SECONDS = 10
_NAP_SECONDS = 0.002


def _check_world(rank: int, size: int) -> None:
    """Rejects a world that is not the launcher's job.

    Raises:
      DistBackendError: torch's rank or size is another.
    """
    if (basics.rank(), basics.size()) != (rank, size):
        raise DistBackendError(
            f"smddp: torch.distributed has rank {rank} of {size}, but the launcher's job has rank "
            f"{basics.rank()} of {basics.size()}. Start the script with `smddprun -np {size} "
            "python train.py`, and leave out rank= and world_size="
        )


def _refuse_elastic() -> None:
    """Rejects a group of ranks that come and go, as its number of ranks cannot change.

    Raises:
      DistBackendError: the job is elastic.
    """
    if rendezvous.is_elastic():
        raise DistBackendError(
            "smddp: torch.distributed has as many ranks all the time, so it cannot be used in an "
            "elastic job. Train with DistributedOptimizer and elastic.run of smddp_tf.torch; or "
            "start the job without --min-np, --max-np and --host-discovery-script, perhaps with "
            "--max-restarts"
        )


def _process_set(options: Any, ranks: list[int]) -> int:
    """The core's number of these ranks, which may be made for them now.

    Raises:
      DistBackendError: the ranks cannot be connected.
    """
    if len(ranks) == basics.size():
        return 0
    numbers = [n for n, one in process_sets.added_sets.items() if one.ranks == ranks]
    if numbers:
        return numbers[0]
    timeout = options.timeout
    limit = 0 if timeout == default_pg_timeout else max(0, timeout.total_seconds())
    return _store.add_set(options.store, options.group_rank, ranks, limit)


def _leave_broken_job(options: Any) -> None:
    """Leaves the job on all ranks, to be connected anew, if a collective failed on any of them.

    Others may not have heard of it yet. They wait for that: MPI goes on after a broken job only.
    """
    store, size, limit = options.store, options.group_size, options.timeout
    if not _store.any_says(store, size, basics.is_broken(), limit):
        return
    deadline = time.monotonic() + _HEAR_SECONDS
    while not basics.is_broken() and time.monotonic() < deadline:
        time.sleep(_NAP_SECONDS)
    job.shutdown()


def _begin(options: Any, rank: int, size: int, default: bool) -> None:
    """Begins the job, unless it has begun, with torch's whole world; `default`: by its own group.

    Raises:
      DistBackendError: the job is elastic, or has other ranks than the world.
    """
    _refuse_elastic()
    _store.next_world()
    config.set_timeout(options.timeout.total_seconds())
    if basics.is_initialized():
        _check_world(rank, size)
        if default:
            _leave_broken_job(options)
    if _store.starts_alone(os.environ, size):
        _store.begin(options.store, rank, size)
    job.init()  # which has no effect then
    _check_world(rank, size)


def create(options: Any, backend_options: Any = None) -> Any:
    """Makes the process group that init_process_group() or new_group() asks for.

    Raises:
      DistBackendError: the job cannot begin, or new_group() asks for some ranks before it has.
    """
    del backend_options
    rank, size = options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group)
    if not ranks:  # the default group
        _begin(options, rank, size, default=True)
        ranks = list(range(size))
    elif basics.is_initialized():  # perhaps not by a default group of this backend
        _check_world(torch.distributed.get_rank(), torch.distributed.get_world_size())
    else:
        if size != torch.distributed.get_world_size():
            raise DistBackendError(
                f"smddp: the group of ranks {ranks} cannot be the first of this backend; make one "
                'of all ranks before it, with new_group(backend="smddp")'
            )
        _begin(options, rank, size, default=False)
    if ranks != sorted(ranks):  # which new_group(sort_ranks=False) keeps, and the core does not
        return _gloo.connect(options.store, rank, size, options.timeout)
    number = _process_set(options, ranks)
    # Later than the rest: it loads torch.compile's modules, which takes seconds.
    from smddp_tf.torch._group import SmddpProcessGroup

    name = options.group_id
    return SmddpProcessGroup(options.store, rank, ranks, name, number, options.timeout)


def register() -> None:
    """Makes the backend known to torch.distributed, once."""
    if not hasattr(torch.distributed.Backend, NAME.upper()):
        torch.distributed.Backend.register_backend(
            NAME, create, extended_api=True, devices=["cpu", "cuda"]
        )
