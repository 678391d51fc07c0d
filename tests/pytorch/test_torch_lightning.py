"""Lightning's DDPStrategy on the backend, in the flow of SageMaker's guide."""

import functools
import re
import sys

import pytest
import torch_job

launcher = torch_job.launcher
SCRIPT = launcher.ROOT / "tests" / "scripts" / "smddp_lightning.py"
# Each emulated node has one rank. mpirun knows one node only, so its numbers are set here.
TWO_NODES = {"SMDDP_NODES": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


@functools.cache
def _why_not() -> str:
    command = [sys.executable, "-c", "import lightning.pytorch"]
    code, output, _ = launcher.run_command(command, timeout=120)
    return "" if code == 0 else (output.strip().splitlines() or ["no output"])[-1]


@pytest.mark.parametrize(
    ("precision", "env"), [("32", {}), ("bf16-mixed", {}), ("32", TWO_NODES)], ids=str
)
def test_guide(precision, env):
    """prepare_data once per node, equal weights, and those of one process, bit for bit."""
    torch_job.need_torch()
    if _why_not():
        pytest.skip(f"`make test-torch` runs it; here: {_why_not()}")
    command = [sys.executable, "-m", "smddp_tf.launch", "-np", "2", "--alias"]
    command += [sys.executable, SCRIPT, "--precision", precision]
    code, output, timed_out = launcher.run_command(command, timeout=180, env=env)
    assert (code, timed_out) == (0, False), output[-4000:]
    for rank in range(2):
        local = 0 if env else rank
        assert f"rank {rank} of 2 local {local} backend smddp equal True" in output, output[-3000:]
    assert "one process equal True moved True" in output, output[-3000:]
    prepared = sorted(re.findall(r"prepare_data in rank (\d)", output))
    of_one_process = ["0"]
    assert prepared == of_one_process + (["0", "1"] if env else ["0"]), output[-3000:]
