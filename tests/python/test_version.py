"""What the environment's Python finds, from anywhere: the package, and what it says of itself."""

import os
import pathlib
import platform
import subprocess
import sys

import tensorflow as tf

import smddp_tf


def test_it_says_what_is_chosen():
    """Versions, instruction set, MPI, and what was chosen for this TensorFlow."""
    command = [sys.executable, "-m", "smddp_tf", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    for line in (
        f"smddp_tf {smddp_tf.__version__} on Python ",
        f"core library {smddp_tf.__version__}: /",
        f"installed from: no wheel: {pathlib.Path(smddp_tf.__file__).parents[1]}\n",
        f"system: Linux {platform.release()} {platform.machine()}, glibc ",
        f" for {platform.machine()} and glibc ",
        ", with generic ",
        "instruction set: ",
        "MPI: not opened, for there is one process; ",
        "NCCL: ",
        "kernels for GPUs: ",
        f"TensorFlow {tf.__version__}\n",
        "jit_compile=True: typed custom calls\n",
        "operations complete by: a copied callback\n",
    ):
        assert line in done.stdout, (line, done.stdout)


def test_scripts_anywhere_find_the_package(tmp_path):
    """Without PYTHONPATH, away from the checkout, after `make build`."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", "import smddp_tf; print(smddp_tf.__file__)"]
    options = {"env": env, "cwd": tmp_path, "capture_output": True, "text": True, "timeout": 600}
    done = subprocess.run(command, check=False, **options)
    assert done.returncode == 0, done.stderr
    assert pathlib.Path(done.stdout.strip()).samefile(smddp_tf.__file__)
