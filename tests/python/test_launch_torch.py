"""The variables by which PyTorch knows ranks, from what launchers set."""

import pathlib
import socket

from smddp_tf.launch import torch_variables
from smddp_tf.launch.hosts import Host

LOCAL_PORTS = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range")

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
MPICH = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SLURM = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1"}


def test_of_a_rank():
    """One launcher's numbers; what is set stays; Slurm says no local size as a number."""
    wanted = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert torch_variables.of_rank(OPEN_MPI) == wanted
    assert torch_variables.of_rank(MPICH) == wanted
    assert torch_variables.of_rank({**OPEN_MPI, **SLURM, "SLURM_PROCID": "0"}) == wanted
    del wanted["LOCAL_WORLD_SIZE"]
    assert torch_variables.of_rank(SLURM) == wanted
    assert torch_variables.of_rank({**SLURM, "RANK": "7"}).get("RANK") is None
    assert torch_variables.of_rank({"SLURM_PROCID": "0"}) == {}  # a batch script is no rank
    assert torch_variables.of_rank({}) == {}


def test_of_a_job():
    """The first host; on this machine a port that is free; nothing where the user has set one."""
    hosts = [Host("a", 2), Host("b", 2)]
    assert torch_variables.of_job(hosts, [], {})["MASTER_ADDR"] == "a"
    here = torch_variables.of_job([], [], {})
    assert here["MASTER_ADDR"] == "127.0.0.1"
    assert 20000 <= int(here["MASTER_PORT"])
    assert torch_variables.of_job(hosts, [("MASTER_PORT", "1234")], {}) == {}
    assert torch_variables.of_job(hosts, [], {"MASTER_ADDR": "c"}) == {}


def test_free_port(monkeypatch):
    """Not one that Linux gives away in the meantime, nor one on which somebody listens."""
    first, last = map(int, LOCAL_PORTS.read_text().split())
    chosen = [torch_variables.free_port() for _ in range(50)]
    assert len(set(chosen)) > 40
    if (first, last) == (32768, 60999):  # Linux's default; a wider range leaves too few
        assert not any(first <= port <= last for port in chosen)
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(torch_variables, "_PORTS", [port] * 100)
        other = torch_variables.free_port()
    assert other != port
    with socket.socket() as one:
        one.bind(("", other))
