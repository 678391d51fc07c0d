"""One wheel file, installed as a user would, on both TensorFlows and under both MPIs."""

import importlib.metadata
import os
import platform
import subprocess
import sys

import launcher
import pytest
from bodies import wheel

# SMDDP_TEST_WHEELS=wheelhouse tests what `make wheels` has made.
FOLDER = launcher.ROOT / os.environ.get("SMDDP_TEST_WHEELS", "dist")
MACHINE = platform.machine()
WHEELS = sorted(FOLDER.glob(f"smddp_tf-*_{MACHINE}.whl"))
LAUNCHERS = {
    "Open MPI": launcher.BIN / "mpirun",
    "MPICH": launcher.ROOT / ".venv-mpich" / "bin" / "mpirun",
}

pytestmark = pytest.mark.skipif(not WHEELS, reason=f"no wheel in {FOLDER}; `make wheel` makes it")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder that holds the installed wheel alone."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input"]
    arguments = ["--no-deps", "--no-index", "--target", folder, WHEELS[-1]]
    subprocess.run([*pip, *arguments], check=True, timeout=120)
    return folder


def test_one_file():
    """For every Python 3, on Linux; and only one, so that a stale one is not what is tested."""
    assert len(WHEELS) == 1, WHEELS
    assert WHEELS[0].name.split("-")[2:4] == ["py3", "none"]
    assert "linux_" in WHEELS[0].name.split("-")[4]


def test_needs_neither_tensorflow_nor_mpi(installed, tmp_path):
    """The package imports and counts itself as one rank; what is missing is said at first use."""
    env = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, *launcher.script(wheel.needs_no_tensorflow, tmp_path)]
    options = {"env": env, "cwd": installed, "capture_output": True, "text": True, "timeout": 60}
    result = subprocess.run(command, check=False, **options)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(str(installed)), result.stdout


def test_pytorch_finds_the_backend(installed):
    """By the entry point that `import torch` calls, which names a function of the wheel."""
    (path,) = installed.glob("smddp_tf-*.dist-info")
    (entry,) = importlib.metadata.PathDistribution(path).entry_points.select(group="torch.backends")
    code = f"from {entry.module} import {entry.attr}"
    env = {**os.environ, "PYTHONPATH": str(installed)}
    subprocess.run([sys.executable, "-c", code], check=True, env=env, cwd=installed, timeout=60)


@pytest.mark.parametrize("mpi", list(LAUNCHERS))
def test_runs_the_example(installed, python, mpi, tmp_path):
    """Two ranks train, and end with equal weights."""
    if not LAUNCHERS[mpi].exists():
        pytest.skip(f"no {LAUNCHERS[mpi]}; `make test` makes it")
    # Away from the checkout, whose own package would be found beside the script's folder.
    script = tmp_path / "train.py"
    script.write_bytes((launcher.ROOT / "examples" / "train_digits.py").read_bytes())
    command = [*launcher.mpirun(2, LAUNCHERS[mpi]), python, script, "--epochs", "1"]
    env = {"PYTHONPATH": str(installed)}
    code, output, timed_out = launcher.run_command(command, timeout=120, env=env, cwd=tmp_path)
    assert (code, timed_out) == (0, False), output[-4000:]
    assert "all 2 ranks hold the same weights" in output
