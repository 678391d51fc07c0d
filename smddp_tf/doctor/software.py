"""Versions of what a job needs, without importing a framework into this process."""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import platform
import re
import subprocess
import sys

from smddp_tf._src.job import native
from smddp_tf._version import __version__
from smddp_tf.doctor.findings import ERROR, WARNING, Finding
from smddp_tf.errors import LibraryError
from smddp_tf.launch import LaunchError, mpi

_TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu")
_FIRST, _LAST = (2, 15), (2, 21)  # TensorFlow's versions that the package is tested with
_IMPORT_SECONDS = 120

# Run in a process of its own: a TensorFlow built for another processor ends the whole process.
_TRY = """
import json
import tensorflow as tf
from smddp_tf._src.graph import library
library.check_async_ops()
print(json.dumps({"version": tf.__version__, "gpus": len(tf.config.list_physical_devices("GPU"))}))
"""


def _distribution(names) -> str:
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def _nccl() -> str:
    """The version of the NCCL that this library would use, which a wheel may have; "" if none."""
    try:
        version, _, _ = native.nccl().partition(": ")
    except LibraryError:  # which init() says, with a remedy
        return ""
    return "" if version == "none" else version


def _cuda() -> str:
    """The newest CUDA that the driver knows; "" without a driver."""
    try:
        number = ctypes.c_int()
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)) != 0:
            return ""
    except (OSError, AttributeError):
        return ""
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def versions() -> dict:
    """Product -> version; "" for what is not there."""
    return {
        "smddp_tf": __version__,
        "python": platform.python_version(),
        "tensorflow": _distribution(_TENSORFLOWS),
        "keras": _distribution(("keras",)),
        "nccl": _nccl(),
        "cuda_driver": _cuda(),
    }


def check_versions(found: dict) -> list:
    """Findings about versions()."""
    given = found["tensorflow"]
    if not given:
        what = f"TensorFlow is not installed for {sys.executable}"
        return [Finding(ERROR, what, "pip install 'smddp_tf[cpu]', or [gpu], or any TensorFlow")]
    number = tuple(map(int, re.findall(r"\d+", given)[:2]))
    if not _FIRST <= number <= _LAST:
        remedy = "use TensorFlow {}.{} to {}.{}".format(*_FIRST, *_LAST)
        return [Finding(WARNING, f"TensorFlow {given} is not one that is tested", remedy)]
    return []


def try_tensorflow(python: str = sys.executable) -> list:
    """Imports TensorFlow and our operations in a process of its own. Returns findings."""
    command = [python, "-c", _TRY]
    try:
        ran = subprocess.run(command, capture_output=True, timeout=_IMPORT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        what = f"TensorFlow was not imported within {_IMPORT_SECONDS} s"
        return [Finding(ERROR, what, "see whether the file system that has it is slow")]
    if ran.returncode == 0:
        json.loads(ran.stdout.splitlines()[-1])
        return []
    lines = ran.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
    said = lines[-1] if ran.returncode > 0 else f"signal {-ran.returncode} ended the process"
    remedy = f"run `{python} -c 'import tensorflow'`, which shows the whole error"
    return [Finding(ERROR, f"TensorFlow with our operations cannot be imported: {said}", remedy)]


def find_mpi(search: str | None) -> tuple:
    """The launcher of jobs, or None, and findings."""
    try:
        return mpi.ask(mpi.find(None, search)), []
    except LaunchError as error:
        what, _, remedy = str(error).partition("; ")
        return None, [Finding(ERROR, what, remedy)]
