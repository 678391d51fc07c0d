"""Ranks that no launcher of MPI has started, as torchrun's: they meet in torch's store."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import os
import socket
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from torch.distributed import DistBackendError

from smddp_tf._src.job import job
from smddp_tf.launch import torch_variables
from smddp_tf.torch import _environment

_NAP_SECONDS = 0.002
_LOOPBACK = "127.0.0.1"
_ELSEWHERE = "198.51.100.1"  # of RFC 5737: no host has it, but a way may lead there
_jobs = itertools.count(1)  # each has keys of its own


def starts_alone(environment: Mapping[str, str], size: int) -> bool:
    """Whether the processes of this world of torch's have no launcher of MPI."""
    if size == 1:
        return False
    by_torchrun = "TORCHELASTIC_RUN_ID" in environment  # perhaps itself in a task of Slurm
    others = {name: value for name, value in environment.items() if name != "RANK"}
    return by_torchrun or "RANK" not in torch_variables.of_rank(others)


def _own_address(host: str) -> str:
    """The address from which this host would send to another; nothing is sent.

    Raises:
      OSError: there is no such host, or no way to it.
    """
    family, kind, _, _, address = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as one:
        one.connect(address)
        return one.getsockname()[0]


class _StoreExchange:
    """An allgather through a store, for smddp_tf._src.job.bootstrap."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        # torchrun's store has what the processes of earlier attempts have left.
        attempt = _environment.attempt()
        self._prefix = f"smddp/{attempt}/{next(_jobs)}"
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
                return b"".join(self._store.get(key) for key in self._keys())
        except RuntimeError as error:
            self._lose(error)
        time.sleep(_NAP_SECONDS)
        return None

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
        """The address by which this host reaches rank 0's, or, on that one, others."""
        own = _LOOPBACK
        for other in (_environment.master() or _LOOPBACK, _ELSEWHERE):
            with contextlib.suppress(OSError):  # a host without a network needs none
                own = _own_address(other)
            if not ipaddress.ip_address(own).is_loopback:
                break
        return own

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


def begin(store: Any, rank: int, size: int) -> None:
    """Begins a job of the world's ranks; between hosts, TCP connects them.

    Raises:
      InitError: the ranks cannot be connected, or their settings differ.
    """
    job.init_with(rank, size, _StoreExchange(store, rank, size))
