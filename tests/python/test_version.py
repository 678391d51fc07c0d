"""python -m smddp_tf --version."""

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
        "instruction set: ",
        "MPI: ",
        f"TensorFlow {tf.__version__}\n",
        "jit_compile=True: typed custom calls\n",
        "operations complete by: a copied callback\n",
    ):
        assert line in done.stdout, (line, done.stdout)
