"""The variables by which torch.distributed's env:// knows rank and size.

smddprun sets MASTER_ADDR and MASTER_PORT. mpirun sets none of them, but numbers of its own.
"""

from __future__ import annotations

import ctypes
import os
import socket

from smddp_tf._src.job import basics, job, native, rendezvous
from smddp_tf.errors import InitError
from smddp_tf.launch import torch_variables


def adopt_ranks() -> None:
    """Sets RANK and its like from the launcher's numbers, where they are not set."""
    os.environ.update(torch_variables.of_rank(os.environ))


def attempt() -> str:
    """Which of torchrun's attempts to run the script this is, from 0."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def master() -> str:
    """The host of rank 0; "" if it is not set."""
    return os.environ.get("MASTER_ADDR", "")


def gloo_interfaces() -> list[str]:
    """The network interfaces that the user, or smddprun, bids gloo use; none: it is to choose."""
    return [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]


def _free_address() -> str:
    """This host's name, and a port that is free."""
    host = "127.0.0.1" if basics.cross_size() == 1 else socket.gethostname()
    return f"{host} {torch_variables.free_port()}"


def agree_on_master() -> None:
    """Sets MASTER_ADDR and MASTER_PORT if the launcher has not. All ranks must call it.

    Ranks of elastic jobs do not need them: torch.distributed cannot connect these.

    Raises:
      InitError: the ranks cannot be connected, or one of them died.
    """
    if "RANK" not in os.environ or all(name in os.environ for name in torch_variables.MASTER):
        return
    if rendezvous.is_elastic():
        os.environ.update(zip(torch_variables.MASTER, ("127.0.0.1", "0"), strict=True))
        return
    job.init()
    text = ctypes.create_string_buffer(256)
    if basics.rank() == 0:
        text.value = _free_address().encode()
    size = ctypes.c_int64(len(text))
    if native.core().smddp_broadcast(text, size, 0, b"MASTER_ADDR and MASTER_PORT"):
        raise InitError(native.last_error())
    for name, value in zip(torch_variables.MASTER, text.value.decode().split(), strict=True):
        os.environ.setdefault(name, value)
