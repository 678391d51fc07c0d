"""Ranks that meet in torch's store.

Those of a job that no launcher of MPI has started, as torchrun's, and those of a group in any job.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import DistBackendError

from smddp_tf._src.job import adding_sets, job
from smddp_tf.errors import JobError
from smddp_tf.launch import torch_variables
from smddp_tf.torch import _environment
from smddp_tf.torch._address import LOOPBACK, own_address

_NAP_SECONDS = 0.002
_jobs = itertools.count(1)  # each has keys of its own
_worlds = 0  # so many have begun, equally many on all ranks; names of groups are theirs


def starts_alone(environment: Mapping[str, str], size: int) -> bool:
    """Whether the processes of this world of torch's have no launcher of MPI."""
    if size == 1:
        return False
    by_torchrun = "TORCHELASTIC_RUN_ID" in environment  # perhaps itself in a task of Slurm
    others = {name: value for name, value in environment.items() if name != "RANK"}
    return by_torchrun or "RANK" not in torch_variables.of_rank(others)


class _StoreExchange:
    """An allgather through a store, for smddp_tf._src.job.bootstrap."""

    def __init__(self, store: Any, rank: int, size: int, name: str) -> None:
        self._store, self._rank, self._size = store, rank, size
        # torchrun's store has what the processes of earlier attempts have left.
        self._prefix = f"smddp/{_environment.attempt()}/{name}"
        self._gathers = 0
        self._failure = f"{self._prefix}/failure"
        self._lost = ""  # why the store cannot be used
        self._secret = b""

    def _keys(self) -> list[str]:
        return [f"{self._prefix}/{self._gathers}/{rank}" for rank in range(self._size)]

    def _lose(self, error: Exception) -> None:
        self._lost = self._lost or f"torch's store cannot be reached: {error}"

    def start(self, block: bytes) -> None:
        """Stores this rank's block."""
        self._gathers += 1
        try:
            self._store.set(self._keys()[self._rank], block)
        except RuntimeError as error:  # torch's errors are of this class
            self._lose(error)

    def blocks(self) -> bytes | None:
        """The blocks of all ranks, once all are in the store."""
        try:
            if self._store.check(self._keys()):
                return b"".join(self._store.multi_get(self._keys()))
        except RuntimeError as error:
            self._lose(error)
        time.sleep(_NAP_SECONDS)
        return None

    def missing(self) -> list[int]:
        """Whose blocks of the last allgather are not in the store."""
        with contextlib.suppress(RuntimeError):  # the store may be gone, which is told already
            return [i for i, key in enumerate(self._keys()) if not self._store.check([key])]
        return []

    def fail(self, text: str) -> None:
        """Stores the reason why this rank cannot start."""
        try:
            self._store.set(self._failure, text)
        except RuntimeError as error:
            self._lose(error)

    def why(self) -> str:
        """The reason that a rank has stored."""
        try:
            if not self._lost and self._store.check([self._failure]):
                return self._store.get(self._failure).decode(errors="replace")
        except RuntimeError as error:
            self._lose(error)
        return self._lost

    def host(self) -> str:
        """The address by which other hosts reach this one."""
        return own_address() or LOOPBACK

    def secret(self) -> bytes:
        """Chosen by the first rank that asks."""
        if not self._secret:
            own = os.urandom(32).hex()
            try:
                self._secret = self._store.compare_set(f"{self._prefix}/secret", "", own)
            except RuntimeError as error:
                self._lose(error)
                return own.encode()  # which is nobody else's
        return self._secret


def any_says(store: Any, size: int, own: bool, timeout: timedelta) -> bool:
    """Whether `own` is true on any rank of the world, all of which must call it.

    Raises:
      DistBackendError: the others have not called it within the timeout, or the store is gone.
    """
    prefix = f"smddp/{_environment.attempt()}/broken"
    turn = (store.add(prefix, 1) - 1) // size  # a world may be begun in one store again
    if own:
        store.set(f"{prefix}/{turn}/true", "1")
    if store.add(f"{prefix}/{turn}", 1) == size:
        store.set(f"{prefix}/{turn}/told", "1")
    try:
        store.wait([f"{prefix}/{turn}/told"], timeout)
    except RuntimeError as error:
        raise DistBackendError(
            f"smddp: not all of the {size} ranks began this world within {timeout.total_seconds()} "
            "s; one that has called shutdown() cannot, unless all have"
        ) from error
    return bool(store.check([f"{prefix}/{turn}/true"]))


def next_world() -> None:
    """Counts one more world: torchrun's store still has what the groups of the last one have left.

    A group that could not be made has keys of some of its members there.
    """
    global _worlds
    _worlds += 1


def begin(store: Any, rank: int, size: int) -> None:
    """Begins a job of the world's ranks; between hosts, TCP connects them.

    Raises:
      InitError: the ranks cannot be connected, or their settings differ.
    """
    job.init_with(rank, size, _StoreExchange(store, rank, size, str(next(_jobs))))


def add_set(store: Any, rank: int, ranks: Sequence[int], limit: float) -> int:
    """Makes a process set of a group's ranks, which no others of the job take part in.

    Args:
      store: of the group.
      rank: this process's, in the group.
      ranks: their numbers in the job, in ascending order.
      limit: for how long to wait for the others, in seconds; 0 for SMDDP_TIMEOUT_SECONDS.

    Raises:
      DistBackendError: the ranks cannot be connected.
    """
    # new_group(use_local_synchronization=True) gives the name of a destroyed group again.
    members = f"world {_worlds}/members"
    turn = (store.add(f"smddp/{_environment.attempt()}/{members}", 1) - 1) // len(ranks)
    exchange = _StoreExchange(store, rank, len(ranks), f"{members}/{turn}")
    try:
        return adding_sets.add_by_members(ranks, exchange, limit)
    except JobError as error:
        missing = [ranks[place] for place in exchange.missing()]
        awaited = f" (new_group, without ranks {missing})" if missing else " (new_group)"
        raise DistBackendError(f"smddp: {error}{awaited}") from error
