"""Collects the Python layer's settings and versions, which init() compares across ranks."""

import sys
from typing import Any

from smddp_tf._src.job import config

# Product -> (module, names of its distributions on the package index).
_DISTRIBUTIONS = {
    "TensorFlow": ("tensorflow", ("tensorflow", "tensorflow-cpu", "tensorflow-gpu")),
    "Keras": ("keras", ("keras",)),
    "PyTorch": ("torch", ("torch",)),
}


def _version(module: str, distributions: Any) -> str:
    """The module's major.minor version, without importing it; "" if unknown."""
    import importlib.metadata  # which takes longer to load than this package

    found = getattr(sys.modules.get(module), "__version__", None)
    for name in () if found else distributions:
        try:
            found = importlib.metadata.version(name)
            break
        except importlib.metadata.PackageNotFoundError:
            continue
    return ".".join(str(found).split(".")[:2]) if found else ""


def terms() -> tuple[Any, ...]:
    """Returns (must, should, problem).

    must and should are NAME=value lines that have to, or ought to, agree across ranks. problem says
    why this rank cannot start; "" if it can.
    """
    should = "".join(f"{name}={_version(*where)}\n" for name, where in _DISTRIBUTIONS.items())
    try:
        settings = config.load()
    except ValueError as error:
        return "", should, str(error)
    must = (
        f"SMDDP_BUCKET_BYTES={settings.bucket_bytes}\n"
        f"SMDDP_FIRST_BUCKET_BYTES={settings.first_bucket_bytes}\n"
    )
    return must, should, ""
