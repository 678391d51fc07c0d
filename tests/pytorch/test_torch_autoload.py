"""`import torch` makes the backend known where the package is installed."""

import re

import pytest
import torch_job

import smddp_tf

launcher = torch_job.launcher
SCRIPT = launcher.ROOT / "tests" / "scripts" / "torch_backend_option.py"
LAUNCHERS = {
    "smddprun": [*torch_job.SMDDPRUN, "-np", "2", torch_job.PYTHON],
    "torchrun": [torch_job.PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2"],
    "mpirun": [*launcher.mpirun(2), torch_job.PYTHON],
}


@pytest.fixture(name="environment")
def _environment(tmp_path):
    """That of an installed package: what pip writes of it, beside the checkout."""
    torch_job.need_torch()
    text = (launcher.ROOT / "pyproject.toml").read_text()
    group, entry = re.search(r'\[project\.entry-points\."(.+)"\]\n(.+)\n', text).groups()
    folder = tmp_path / f"smddp_tf-{smddp_tf.__version__}.dist-info"
    folder.mkdir()
    (folder / "entry_points.txt").write_text(f"[{group}]\n{entry}\n".replace('"', ""))
    (folder / "METADATA").write_text(f"Name: smddp_tf\nVersion: {smddp_tf.__version__}\n")
    return {**torch_job.ENVIRONMENT, "PYTHONPATH": f"{launcher.ROOT}:{tmp_path}"}


def _run(words, environment, **options):
    command = [*words, SCRIPT, "--dist-backend", "smddp"]
    return launcher.run_command(command, timeout=120, env={**environment, **options})


@pytest.mark.parametrize(
    "started_by", ["smddprun", pytest.param("torchrun", marks=pytest.mark.thorough)]
)
def test_backend_as_an_option(environment, started_by):
    """The script imports nothing of ours; RANK and its like are there before it reads them."""
    code, output, timed_out = _run(LAUNCHERS[started_by], environment)
    assert (code, timed_out) == (0, False), output[-4000:]
    for rank in range(2):
        assert f"rank {rank} of 2, {rank} here smddp 3.0" in output, output[-3000:]


@pytest.mark.thorough
def test_ranks_of_others(environment):
    """Under plain mpirun `import torch` changes no variable: the script may be another's."""
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    code, output, timed_out = _run(LAUNCHERS["mpirun"], environment, **master)
    assert (code, timed_out) == (0, False), output[-4000:]
    assert output.count("no RANK") == 2, output[-3000:]


def test_beside_sagemakers_library(environment, tmp_path):
    """Which registers a backend of this name itself, and could not if ours were there."""
    folder = tmp_path / "smdistributed_dataparallel-2.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: smdistributed-dataparallel\nVersion: 2.0\n")
    code, output, timed_out = _run(LAUNCHERS["torchrun"], environment)
    assert (code, timed_out) == (1, False), output[-4000:]
    assert "Unknown backend type smddp" in output, output[-3000:]


@pytest.mark.thorough
def test_with_the_import(environment):
    """Scripts that import smddp_tf.torch as before run as before."""
    words = [*LAUNCHERS["smddprun"], launcher.ROOT / "examples" / "torch_digits.py"]
    code, output, timed_out = launcher.run_command(words, timeout=120, env=environment)
    assert (code, timed_out) == (0, False), output[-4000:]
