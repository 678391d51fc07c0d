"""Finds, loads and checks the native libraries; the only file that knows their paths."""

import ctypes
import functools
import os
import pathlib

from smddp_tf import _config
from smddp_tf._version import __version__
from smddp_tf.errors import LibraryError


def _path(name: str) -> str:
    directory = _config.load().library_dir or pathlib.Path(__file__).parent / "lib"
    path = pathlib.Path(directory) / name
    if not path.exists():
        raise LibraryError(
            f"{path} does not exist; build it with `make build` in a checkout, install the package "
            "with `pip install .`, or set SMDDP_LIBRARY_DIR to the folder that has it"
        )
    return os.fspath(path)


@functools.cache
def core() -> ctypes.CDLL:
    """The C API (ops/capi/smddp.h)."""
    library = ctypes.CDLL(_path("libsmddp.so"))
    library.smddp_last_error.restype = ctypes.c_char_p
    library.smddp_version.restype = ctypes.c_char_p
    library.smddp_stats_json.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    found = library.smddp_version().decode()
    if found != __version__:
        raise LibraryError(
            f"libsmddp.so is of version {found} but the Python package is {__version__}; rebuild "
            "with `make build` or reinstall the package"
        )
    return library


def last_error() -> str:
    """The sentence of the calling thread's last failure in the C API."""
    return core().smddp_last_error().decode(errors="replace")


def tensorflow():
    """The tensorflow module, or an error that says what to install."""
    try:
        import tensorflow as tf
    except ImportError as error:
        raise ImportError(
            "smddp_tf's collectives need TensorFlow, which cannot be imported here; install "
            "smddp_tf[cpu] or smddp_tf[gpu], or TensorFlow 2.15 to 2.21 in any other way"
        ) from error
    return tf


@functools.cache
def ops():
    """The TensorFlow ops, as functions."""
    tf = tensorflow()
    core()
    return tf.load_op_library(_path("libsmddp_tf.so"))


@functools.cache
def register_xla() -> str:
    """Makes the XLA custom call known. Returns "" or why that cannot be done."""
    tf = tensorflow()
    ops()
    library = ctypes.CDLL(_path("libsmddp_tf.so"))
    library.smddp_xla_register.argtypes = [ctypes.c_char_p]
    library.smddp_xla_error.restype = ctypes.c_char_p
    path = pathlib.Path(tf.__file__).parent / "libtensorflow_cc.so.2"
    if library.smddp_xla_register(os.fsencode(path)) == 0:
        return ""
    return library.smddp_xla_error().decode(errors="replace")
