"""What all ranks must, or should, start with alike, as the Python layer knows it."""

import importlib.metadata
import sys

from smddp_tf._job import config

# The names under which TensorFlow and Keras are published.
_DISTRIBUTIONS = {
    "TensorFlow": ("tensorflow", ("tensorflow", "tensorflow-cpu", "tensorflow-gpu")),
    "Keras": ("keras", ("keras",)),
}


def _version(module: str, distributions) -> str:
    """Its major and minor version, without importing it; "" if that cannot be known."""
    found = getattr(sys.modules.get(module), "__version__", None)
    for name in () if found else distributions:
        try:
            found = importlib.metadata.version(name)
            break
        except importlib.metadata.PackageNotFoundError:
            continue
    return ".".join(str(found).split(".")[:2]) if found else ""


def terms() -> tuple:
    """Returns (must, should, problem): lines of NAME=value, and why this rank cannot start."""
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
