"""One wheel file, unpacked once, runs the example on every TensorFlow and under every MPI."""

import subprocess
import sys

import launcher
import pytest

MPICH = launcher.ROOT / ".venv-mpich/bin/mpirun"
EXAMPLE = launcher.ROOT / "examples" / "train_digits.py"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The wheel's files, in a folder for PYTHONPATH."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, launcher.ROOT]
    subprocess.run(build, check=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")
    target = folder / "site"
    install = [*pip, "install", "--no-deps", "--target", target, wheel]
    subprocess.run(install, check=True, timeout=120)
    return target


@pytest.mark.parametrize("mpi", ["Open MPI", "MPICH"])
def test_wheel(python, mpi, site, tmp_path):
    """Nothing of the checkout but the example's text is used."""
    if mpi == "MPICH" and not MPICH.exists():
        pytest.skip("no .venv-mpich; `make test` makes it")
    script = tmp_path / "train.py"
    script.write_text(EXAMPLE.read_text())
    command = [
        *launcher.mpirun(2, MPICH if mpi == "MPICH" else None),
        *(python, script, "--epochs", "2", "--checkpoints", tmp_path / "checkpoints"),
    ]
    env = {"PYTHONPATH": str(site)}
    code, output, timed_out = launcher.run_command(command, timeout=120, env=env, cwd=tmp_path)
    assert (code, timed_out) == (0, False), output[-4000:]
    assert "all 2 ranks hold the same weights" in output
