"""Locates, loads and version-checks the native libraries; only this file knows their paths."""

import ctypes
import functools
import importlib.util
import os
import pathlib

from smddp_tf._src.job import config
from smddp_tf._version import __version__
from smddp_tf.errors import LibraryError

_PACKAGED = pathlib.Path(__file__).parents[2] / "lib"


def _missing(path: pathlib.Path) -> str:
    """The error text if the library does not exist; "" if it does."""
    if path.exists():
        return ""
    return (
        f"{path} does not exist; build it with `make build` in a checkout, install the package "
        "with `pip install .`, or set SMDDP_LIBRARY_DIR to the folder that has it"
    )


def library_path(name: str) -> str:
    path = pathlib.Path(config.library_dir() or _PACKAGED) / name
    if _missing(path) and (_PACKAGED / name).exists():
        path = _PACKAGED / name  # so that init() can report misplaced() to the other ranks
    if _missing(path):
        raise LibraryError(_missing(path))
    return os.fspath(path)


def misplaced() -> str:
    """The error text if SMDDP_LIBRARY_DIR is set but lacks the library; otherwise ""."""
    folder = config.library_dir()
    return _missing(pathlib.Path(folder) / "libsmddp.so") if folder else ""


class Tensor(ctypes.Structure):
    """Mirrors smddp_tensor in ops/capi/smddp.h."""

    _fields_ = (
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("ndim", ctypes.c_int32),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    )


class Request(ctypes.Structure):
    """Mirrors smddp_request in ops/capi/smddp.h."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("op", ctypes.c_int32),
        ("root", ctypes.c_int32),
        ("process_set", ctypes.c_int32),
        ("matching", ctypes.c_int32),
        ("prescale", ctypes.c_double),
        ("postscale", ctypes.c_double),
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("num_tensors", ctypes.c_int32),
        ("tensors", ctypes.POINTER(Tensor)),
        ("part_bytes", ctypes.POINTER(ctypes.c_int64)),
        ("memory", ctypes.c_int32),
        ("stream", ctypes.c_void_p),
        ("timeout_seconds", ctypes.c_double),
        ("outputs", ctypes.POINTER(ctypes.c_void_p)),
        ("inputs", ctypes.POINTER(ctypes.c_void_p)),
    )


@functools.cache
def core() -> ctypes.CDLL:
    """The core library with its C API (ops/capi/smddp.h), loaded on first use."""
    library = ctypes.CDLL(library_path("libsmddp.so"))
    library.smddp_last_error.restype = ctypes.c_char_p
    library.smddp_version.restype = ctypes.c_char_p
    library.smddp_build.restype = ctypes.c_char_p
    library.smddp_nccl.restype = ctypes.c_char_p
    library.smddp_kernels.restype = ctypes.c_char_p
    library.smddp_stats_json.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    found = library.smddp_version().decode()
    if found != __version__:
        raise LibraryError(
            f"libsmddp.so is of version {found} but the Python package is {__version__}; rebuild "
            "with `make build` or reinstall the package"
        )
    library.smddp_suggest_nccl(_nccl_of_a_wheel().encode())
    return library


def _nccl_of_a_wheel() -> str:
    """The path of the NCCL that tensorflow[and-cuda] brings; "" if it is not installed."""
    found = importlib.util.find_spec("nvidia")  # a namespace of many wheels
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        path = pathlib.Path(folder) / "nccl" / "lib" / "libnccl.so.2"
        if path.exists():
            return os.fspath(path)
    return ""


def nccl() -> str:
    """NCCL's version and path; or "none: " and why it cannot be used."""
    return core().smddp_nccl().decode(errors="replace")


def kernels() -> str:
    """The GPUs that the library has kernels for; or "none: " and why."""
    return core().smddp_kernels().decode()


def last_error() -> str:
    """The message of the calling thread's last C API error."""
    return core().smddp_last_error().decode(errors="replace")
