"""Jobs of Intel MPI on several hosts, which smddprun places."""

import pathlib
import sys

import pytest
from namespaces import Hosts, why_not

HERE = pathlib.Path(__file__).resolve().parent
MPIRUN = HERE.parents[1] / ".venv-impi/bin/mpirun"


@pytest.fixture(autouse=True)
def _needs_intel_mpi_and_hosts():
    if not MPIRUN.exists():
        pytest.skip("no .venv-impi; python3 -m venv, and pip install impi-rt")
    reason = why_not()
    if reason:
        pytest.skip(reason)


@pytest.mark.parametrize("ranks", [[2, 2], [2, 1]], ids=lambda ranks: f"{ranks}")
def test_every_collective(ranks):
    """On hosts with as many ranks each, and with other numbers."""
    with Hosts(len(ranks)) as hosts:
        program = [sys.executable, HERE / "body.py"]
        output = hosts.smddprun_with_hydra(ranks, program, timeout=120, mpirun=MPIRUN)
        assert hosts.left_behind() == []
    for name, number in zip(hosts.names, ranks, strict=True):
        assert output.count(f'"host": "{name}"') == number, output
