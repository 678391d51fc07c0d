"""The variables by which PyTorch's env:// knows ranks. Pure, but for the port that is free."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
from collections.abc import Mapping, Sequence

from smddp_tf.launch.hosts import Host

MASTER = ("MASTER_ADDR", "MASTER_PORT")
# Linux takes none of these for a connection, or for a listener that wants any port, unless told to.
# Until rank 0 listens, which takes seconds, a port that Linux gives could be given again.
_HIGH = range(61000, 65536)
_PORTS = (*range(20000, 32768), *_HIGH)
_TRIES = 100

# PyTorch's name -> Open MPI's, MPICH's, Slurm's.
_LAUNCHERS = (
    {
        "RANK": "OMPI_COMM_WORLD_RANK",
        "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
        "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
        "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
    },
    {
        "RANK": "PMI_RANK",
        "WORLD_SIZE": "PMI_SIZE",
        "LOCAL_RANK": "MPI_LOCALRANKID",
        "LOCAL_WORLD_SIZE": "MPI_LOCALNRANKS",
    },
    {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_STEP_NUM_TASKS", "LOCAL_RANK": "SLURM_LOCALID"},
)


def of_rank(environment: Mapping[str, str]) -> dict[str, str]:
    """RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE, from what the launcher has set.

    Empty where no launcher is known; what is set already is left out.
    """
    for names in _LAUNCHERS:
        if names["RANK"] in environment and names["WORLD_SIZE"] in environment:
            return {
                name: environment[its]
                for name, its in names.items()
                if its in environment and name not in environment
            }
    return {}


def free_port() -> int:
    """A port of this machine on which rank 0 can listen."""
    for port in itertools.chain(random.sample(_PORTS, _TRIES), (0,)):
        with socket.socket() as one, contextlib.suppress(OSError):  # somebody listens on it
            one.bind(("", port))
            return one.getsockname()[1]
    raise OSError("no port of this machine is free")


def of_job(
    hosts: Sequence[Host], variables: Sequence[tuple], environment: Mapping[str, str]
) -> dict[str, str]:
    """MASTER_ADDR and MASTER_PORT, where rank 0 listens; empty if the user has set one of them.

    Args:
      hosts: those of other machines; empty: all ranks run on this one.
      variables: (name, value) pairs that all ranks get anyway.
      environment: of the launcher.
    """
    given = {name for name, _ in variables} | set(environment)
    if given & set(MASTER):
        return {}
    if hosts:
        return dict(zip(MASTER, (hosts[0].name, str(random.choice(_HIGH))), strict=True))
    return dict(zip(MASTER, ("127.0.0.1", str(free_port())), strict=True))
