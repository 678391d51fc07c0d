"""Jobs on several hosts: real networks, host names, processes and /dev/shm of their own."""

import json
import pathlib
import subprocess
import sys

import pytest
from namespaces import Hosts, HostsError, why_not

HERE = pathlib.Path(__file__).resolve().parent


@pytest.fixture(autouse=True)
def _needs_hosts():
    reason = why_not()
    if reason:
        pytest.skip(reason)


@pytest.mark.quiet
@pytest.mark.parametrize("ranks", [[2, 2], [1, 1, 1], [2, 1]], ids=lambda ranks: f"{ranks}")
def test_every_collective(ranks):
    """All collectives are right, and sums send what they need to and little more."""
    with Hosts(len(ranks), rate="1gbit") as hosts:
        output = hosts.mpirun(ranks, [sys.executable, HERE / "body.py"], timeout=120)
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    places = sorted((row["place"][0], row["host"], *row["place"][1:]) for row in rows)
    wanted = [(h, local) for h, count in enumerate(ranks) for local in range(count)]
    assert places == [(r, f"host{h + 1}", h, local) for r, (h, local) in enumerate(wanted)], output
    # Partial sums of 16-bit floats are float32 where a host has several ranks.
    wide = 1.5 if max(ranks) > 1 else 1.0
    for row in rows:
        for name, times in row["traffic"].items():
            need = wide if name == "bfloat16" else 1.0
            assert need * 0.99 < times < need * 1.05, (ranks, name, row["traffic"])


def test_hosts_leave_nothing():
    """Processes and devices of a host end with it, also after a program that fails or hangs."""
    with Hosts(2) as hosts:
        pids = hosts.pids()
        with pytest.raises(HostsError, match="exit"):
            hosts.mpirun([1, 1], ["sh", "-c", "exit 3"], timeout=30)
        with pytest.raises(HostsError, match="did not end within 3 s"):
            hosts.mpirun([1, 1], ["sleep", "61.5"], timeout=3)
    assert not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids)
    left = subprocess.run(["pgrep", "-f", "^sleep 61.5"], capture_output=True, check=False)
    assert left.stdout == b""
