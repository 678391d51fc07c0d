"""run(launcher="ray"), with the real Ray of `make test-ray`'s environment."""

import os
import pathlib
import re
import sys

import launcher
import pytest

import smddp_tf
from smddp_tf.launch import LaunchError

PYTHON = launcher.ROOT / ".venv-ray/bin/python"
SCRIPT = pathlib.Path(__file__).with_name("calls_run_on_ray.py")


def test_on_one_machine(tmp_path):
    """Results, an exception, too many cores, an interrupt; nothing of the job is left."""
    if not PYTHON.exists():
        pytest.skip("no .venv-ray; `make test-ray` makes it")
    waiting = tmp_path / "waiting"
    waiting.mkdir()
    environment = {
        "PATH": f"{PYTHON.parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),  # Ray keeps a token there
        "RAY_USAGE_STATS_ENABLED": "0",
        "TEST_OF_RAY": str(tmp_path),
    }
    code, output, late = launcher.run_command(
        [PYTHON, SCRIPT, waiting], timeout=150, env=environment
    )
    assert (code, late) == (0, False), output[-6000:]
    assert "results [(0, 2), (3, 2)]" in output
    assert re.search(r"\b1\].*here is 1", output), output
    assert "cause OwnError('the reason') 1" in output
    assert "refused run(): no machine of Ray's cluster has {'CPU': 1000}" in output
    assert "interrupted" in output, output
    assert float(re.findall(r"gone after ([\d.]+) s", output)[0]) < 1
    left = launcher.of_environment("TEST_OF_RAY", str(tmp_path))
    assert [command for command in left if "smddp_tf" in command] == []


def test_without_ray(monkeypatch):
    """What to install."""
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setenv("PATH", f"{launcher.BIN}:{os.environ['PATH']}")
    with pytest.raises(LaunchError, match="needs Ray: `pip install ray`"):
        smddp_tf.run(int, launcher="ray")
    with pytest.raises(LaunchError, match="with launcher='ray' Ray chooses the machine"):
        smddp_tf.run(int, launcher="ray", hosts="a:2")
    with pytest.raises(LaunchError, match="launcher is 'ray' or left out"):
        smddp_tf.run(int, launcher="yarn")
    with pytest.raises(LaunchError, match="resources is for launcher='ray'"):
        smddp_tf.run(int, resources={"num_cpus": 2})
    with pytest.raises(TypeError, match="resources is a dict"):
        smddp_tf.run(int, launcher="ray", resources=2)
