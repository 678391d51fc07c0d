"""PyTorch Ignite on Horovod's names."""

import re

import pytest
import torch_job

pytestmark = pytest.mark.thorough  # `make test` does not install it
launcher = torch_job.launcher
SCRIPT = launcher.ROOT / "tests" / "scripts" / "ignite_steps.py"


@pytest.mark.parametrize(
    "words",
    [["smddp_tf.launch", "-np", "2", "--alias", torch_job.PYTHON], ["smddp_tf.compat"]],
    ids=["smddprun", "spawned"],
)
def test_weights_of_one_process(words):
    """Also reductions, objects and a group, on ranks that smddprun or Ignite itself starts."""
    torch_job.need_torch()
    torch_job.need("ignite")
    starts = ["2"] if words == ["smddp_tf.compat"] else []
    command = [torch_job.PYTHON, "-m", *words, SCRIPT, *starts]
    code, output, timed_out = launcher.run_command(command, timeout=180)
    assert (code, timed_out) == (0, False), output[-4000:]
    for rank in range(2):
        (line,) = re.findall(f"rank {rank} of 2 on horovod (.*)", output)
        assert line.split() == 6 * ["True"], line
