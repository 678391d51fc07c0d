"""Scripts written for SageMaker's library and for Horovod, run without an edit."""

import sys

import pytest
import torch_job

launcher = torch_job.launcher
SCRIPTS = launcher.ROOT / "tests" / "scripts"


def _run(script, ranks):
    torch_job.need_torch()
    command = [sys.executable, "-m", "smddp_tf.launch", "-np", str(ranks), "--alias"]
    command += [sys.executable, SCRIPTS / script]
    code, output, timed_out = launcher.run_command(command, timeout=120)
    assert (code, timed_out) == (0, False), output[-4000:]
    return output


@pytest.mark.parametrize("ranks", [2, 3])
def test_smddp(ranks):
    """The second library: the import registers the backend, LOCAL_RANK is there."""
    output = _run("smddp_torch.py", ranks)
    for rank in range(ranks):
        assert f"rank {rank} local {rank} equal True better True" in output, output[-3000:]


def test_smddp_1():
    """The first library: distributed and parallel."""
    output = _run("smddp_torch_1.py", 2)
    for rank in range(2):
        assert f"rank {rank} local {rank} equal True sum True" in output, output[-3000:]
