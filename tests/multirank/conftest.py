"""Fixtures: the environments in which jobs run, and how to run one."""

import functools
import sys

import launcher
import pytest


@functools.cache
def _why_not(python: str) -> str:
    """Why TensorFlow cannot be imported by that Python; "" if it can."""
    code, output, _ = launcher.run_command([python, "-c", "import tensorflow"], timeout=120)
    lines = output.strip().splitlines() or ["no output"]
    return "" if code == 0 else lines[-1]


PYTHONS = {"tf2.21": sys.executable, "tf2.15": str(launcher.ROOT / ".venv-2.15/bin/python")}


@pytest.fixture(params=list(PYTHONS))
def python(request):
    """The Python of each TensorFlow that the project is tested on."""
    path = PYTHONS[request.param]
    reason = _why_not(path)
    if reason:
        pytest.skip(f"{request.param} is not here: {reason}")
    return path


@pytest.fixture
def job(tmp_path):
    """run_ranks(body, ranks, ...) in a folder of this test."""
    return lambda body, ranks, **options: launcher.run_ranks(body, ranks, tmp_path, **options)
