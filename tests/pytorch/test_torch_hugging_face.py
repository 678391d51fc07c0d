"""Accelerate and Transformers' Trainer on the backend."""

import re

import pytest
import torch_job

pytestmark = pytest.mark.thorough  # `make test` does not install it
launcher = torch_job.launcher
SCRIPTS = launcher.ROOT / "tests" / "scripts"
OFFLINE = {"HF_HUB_OFFLINE": "1"}  # models are made here, and nothing is to be looked for
# What makes Transformers see SageMaker's library. The device stands in for a GPU: this shows what
# the library is asked, and not that a model trains.
SAGEMAKER = {
    "SM_FRAMEWORK_PARAMS": '{"sagemaker_distributed_dataparallel_enabled": true}',
    "ACCELERATE_TORCH_DEVICE": "cpu",
}


def _run(*command, env=None) -> str:
    torch_job.need_torch()
    torch_job.need("accelerate, transformers")
    env = {**OFFLINE, **(env or {})}
    code, output, timed_out = launcher.run_command(command, timeout=180, env=env)
    assert (code, timed_out) == (0, False), output[-4000:]
    return output


def _smddprun(ranks, script, *options, env=None) -> str:
    words = [*torch_job.SMDDPRUN, "-np", str(ranks), *options]
    return _run(*words, torch_job.PYTHON, SCRIPTS / script, env=env)


@pytest.mark.parametrize("ranks", [2, 4])
def test_accelerate(ranks):
    """Accumulation, clipping, gathered samples and a saved state; the weights of one process."""
    output = _smddprun(ranks, "accelerate_steps.py")
    for rank in range(ranks):
        (line,) = re.findall(f"rank {rank} of {ranks} backend smddp(.*)", output)
        assert line.count("True") == 7 and "False" not in line, line


@pytest.mark.parametrize("ranks", [2, 4])
def test_trainer(ranks):
    """A language model's loss and way are those of one process that has all ranks' batches."""
    alone = _run(torch_job.PYTHON, SCRIPTS / "transformers_trainer.py", "--alone")
    (wanted,) = re.findall("rank 0 of 1 (steps 12 evaluated .*)", alone)
    output = _smddprun(ranks, "transformers_trainer.py")
    for rank in range(ranks):
        assert f"rank {rank} of {ranks} {wanted} backend smddp equal True" in output, output[-3000:]


def test_in_sagemakers_jobs():
    """Where the estimator asked for SageMaker's library, Transformers finds this one."""
    output = _smddprun(2, "transformers_sagemaker.py", "--alias", env=SAGEMAKER)
    for rank in range(2):
        wanted = f"rank {rank} of 2 by SAGEMAKER_DATA_PARALLEL on smddp local {rank}"
        assert wanted in output, output[-3000:]
