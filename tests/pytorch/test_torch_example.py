"""The examples, as a user starts them."""

import re

import pytest
import torch_job

EXAMPLES = torch_job.launcher.ROOT / "examples"


def _run(script, ranks):
    torch_job.need_torch()
    command = [*torch_job.SMDDPRUN, "-np", str(ranks), torch_job.PYTHON]
    command.append(EXAMPLES / script)
    code, output, timed_out = torch_job.launcher.run_command(command, timeout=180)
    assert (code, timed_out) == (0, False), output[-4000:]
    assert f"all {ranks} ranks hold the same weights" in output
    return [float(one) for one in re.findall(r"accuracy=([\d.]+);", output)]


@pytest.mark.parametrize(
    "ranks", [2, *(pytest.param(n, marks=pytest.mark.thorough) for n in (1, 3))]
)
def test_torch_digits(ranks):
    """Real data: accuracy at least 0.97 on any number of ranks, and equal weights."""
    accuracy = _run("torch_digits.py", ranks)
    assert len(accuracy) == 15 and accuracy[-1] >= 0.97, accuracy


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [1, 2])
def test_lightning_digits(ranks):
    """The same with Lightning's Trainer."""
    (accuracy,) = _run("lightning_digits.py", ranks)
    assert accuracy >= 0.96
