"""The example, as a user starts it."""

import re
import sys

import pytest
import torch_job

SCRIPT = torch_job.launcher.ROOT / "examples" / "torch_digits.py"


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_torch_digits(ranks):
    """Real data: accuracy at least 0.97 on any number of ranks, and equal weights."""
    torch_job.need_torch()
    command = [sys.executable, "-m", "smddp_tf.launch", "-np", str(ranks), sys.executable, SCRIPT]
    code, output, timed_out = torch_job.launcher.run_command(command, timeout=180)
    assert (code, timed_out) == (0, False), output[-4000:]
    assert f"all {ranks} ranks hold the same weights" in output
    accuracy = [float(one) for one in re.findall(r"accuracy=([\d.]+);", output)]
    assert len(accuracy) == 15 and accuracy[-1] >= 0.97, accuracy
