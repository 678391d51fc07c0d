"""As many ranks as a large host has, by the core alone: processes with TensorFlow are too large."""

import sys

import launcher
import pytest


@pytest.mark.parametrize(("ranks", "nodes"), [(32, 1), (30, 7)])
def test_every_collective(ranks, nodes):
    """Also on nodes of four and of five ranks."""
    script = launcher.ROOT / "tests/hosts/body_many.py"
    command = [*launcher.mpirun(ranks), sys.executable, script]
    env = {"SMDDP_NODES": str(nodes)}
    code, output, timed_out = launcher.run_command(command, timeout=120, env=env)
    assert (code, timed_out) == (0, False), output[-4000:]
    for rank in range(ranks):
        assert f"rank {rank} of {ranks} on {nodes} nodes is right" in output, output[-4000:]
