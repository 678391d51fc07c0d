"""Keras with PyTorch as its backend."""

import re

import pytest
import torch_job

pytestmark = pytest.mark.thorough  # `make test` does not install it
launcher = torch_job.launcher
SCRIPT = launcher.ROOT / "tests" / "scripts" / "keras_on_torch.py"


@pytest.mark.parametrize("ranks", [2, 3])
def test_weights_of_one_process(ranks, monkeypatch):
    """The guide's loop with DistributedDataParallel; Keras 3.16's fit(), where it is there."""
    monkeypatch.setenv("KERAS_BACKEND", "torch")  # else Keras imports TensorFlow
    torch_job.need_torch()
    torch_job.need("keras")
    command = [*torch_job.SMDDPRUN, "-np", str(ranks), torch_job.PYTHON, SCRIPT]
    code, output, timed_out = launcher.run_command(command, timeout=180)
    assert (code, timed_out) == (0, False), output[-4000:]
    for rank in range(ranks):
        ways = dict(re.findall(rf"rank {rank} of {ranks}: (\w+) (\w+)", output))
        assert ways.keys() >= {"loop"}, output[-4000:]
        assert set(ways.values()) == {"True"}, output[-4000:]
