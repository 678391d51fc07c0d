"""Versions of what a job needs, without importing a framework into this process."""

from __future__ import annotations

import ctypes
import importlib.metadata
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
# The versions that the package is tested with.
_TESTED = {"TensorFlow": ((2, 15), (2, 21)), "PyTorch": ((2, 13), (2, 14))}
_IMPORT_SECONDS = 120

# Run in a process of its own: what is built for another processor ends the whole process.
_TRY = {
    "TensorFlow": """
import tensorflow
from smddp_tf._src.graph import library
library.check_async_ops()
""",
    # Not smddp_tf.torch, which would wait for the other ranks.
    "PyTorch": """
import torch.distributed
from smddp_tf import torch_autoload
torch_autoload.register()
torch.distributed.Backend.SMDDP
""",
}


def distribution(names) -> str:
    """The version of what is installed under one of these names; "" for none."""
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
        "tensorflow": distribution(_TENSORFLOWS),
        "keras": distribution(("keras",)),
        "torch": distribution(("torch",)),
        "nccl": _nccl(),
        "cuda_driver": _cuda(),
    }


def framework(found: dict) -> str:
    """The framework that jobs train with, of versions(): TensorFlow if it is there; "" for none."""
    return "TensorFlow" if found["tensorflow"] else "PyTorch" if found["torch"] else ""


def check_versions(found: dict) -> list:
    """Findings about versions()."""
    name = framework(found)
    if not name:
        what = f"neither TensorFlow nor PyTorch is installed for {sys.executable}"
        remedy = "pip install 'smddp_tf[cpu]', or [gpu], or any TensorFlow; or 'smddp_tf[torch]'"
        return [Finding(ERROR, what, remedy)]
    given = found["tensorflow"] or found["torch"]
    number = tuple(map(int, re.findall(r"\d+", given)[:2]))
    first, last = _TESTED[name]
    if not first <= number <= last:
        remedy = "use {} {}.{} to {}.{}".format(name, *first, *last)
        return [Finding(WARNING, f"{name} {given} is not one that is tested", remedy)]
    return []


def try_framework(name: str, python: str = sys.executable) -> list:
    """Imports TensorFlow or PyTorch, with our part, in a process of its own. Returns findings."""
    command = [python, "-c", _TRY[name]]
    try:
        ran = subprocess.run(command, capture_output=True, timeout=_IMPORT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        what = f"{name} was not imported within {_IMPORT_SECONDS} s"
        return [Finding(ERROR, what, "see whether the file system that has it is slow")]
    if ran.returncode == 0:
        return []
    lines = ran.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
    said = lines[-1] if ran.returncode > 0 else f"signal {-ran.returncode} ended the process"
    module, part = ("torch", "backend") if name == "PyTorch" else ("tensorflow", "operations")
    remedy = f"run `{python} -c 'import {module}'`, which shows the whole error"
    return [Finding(ERROR, f"{name} with our {part} cannot be imported: {said}", remedy)]


def find_mpi(search: str | None) -> tuple:
    """The launcher of jobs, or None, and findings."""
    try:
        return mpi.ask(mpi.find(None, search)), []
    except LaunchError as error:
        what, _, remedy = str(error).partition("; ")
        return None, [Finding(ERROR, what, remedy)]
