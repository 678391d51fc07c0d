"""Lightning's DDPStrategy on the backend, in the flow of SageMaker's guide."""

import re

import pytest
import torch_job

pytestmark = pytest.mark.thorough  # `make test` does not install it
launcher = torch_job.launcher
SCRIPT = launcher.ROOT / "tests" / "scripts" / "smddp_lightning.py"
# Each emulated node has one rank. mpirun knows one node only, so its numbers are set here.
TWO_NODES = {"SMDDP_NODES": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


def need_lightning() -> None:
    """Skips the test if this Python has none."""
    torch_job.need_torch()
    torch_job.need("lightning.pytorch")


def check(output, local_ranks) -> None:
    """What the ranks printed: rank i is the one with this number on its node."""
    for rank, local in enumerate(local_ranks):
        assert f"rank {rank} of 2 local {local} backend smddp equal True" in output, output[-3000:]
    assert "one process equal True moved True" in output, output[-3000:]
    prepared = sorted(re.findall(r"prepare_data in rank (\d)", output))
    of_one_process = ["0"]
    first = [str(rank) for rank, local in enumerate(local_ranks) if local == 0]
    assert prepared == sorted(of_one_process + first), output[-3000:]


@pytest.mark.parametrize(
    ("precision", "env"), [("32", {}), ("bf16-mixed", {}), ("32", TWO_NODES)], ids=str
)
def test_guide(precision, env):
    """prepare_data once per node, equal weights, and those of one process, bit for bit."""
    need_lightning()
    command = [*torch_job.SMDDPRUN, "-np", "2", "--alias"]
    command += [torch_job.PYTHON, SCRIPT, "--precision", precision]
    code, output, timed_out = launcher.run_command(command, timeout=180, env=env)
    assert (code, timed_out) == (0, False), output[-4000:]
    check(output, local_ranks=[0, 0] if env else [0, 1])
