"""Finds, loads and checks the native libraries; the only file that knows their paths."""

import ctypes
import functools
import os
import pathlib
import threading

from smddp_tf import _config
from smddp_tf._version import __version__
from smddp_tf.errors import LibraryError

# It takes one millisecond on an idle machine.
_SELF_TEST_SECONDS = 10


_PACKAGED = pathlib.Path(__file__).parent / "lib"


def _missing(path: pathlib.Path) -> str:
    """Why the library cannot be loaded from there; "" if it exists."""
    if path.exists():
        return ""
    return (
        f"{path} does not exist; build it with `make build` in a checkout, install the package "
        "with `pip install .`, or set SMDDP_LIBRARY_DIR to the folder that has it"
    )


def _path(name: str) -> str:
    path = pathlib.Path(_config.library_dir() or _PACKAGED) / name
    if _missing(path) and (_PACKAGED / name).exists():
        path = _PACKAGED / name  # by which init() can tell the other ranks of misplaced()
    if _missing(path):
        raise LibraryError(_missing(path))
    return os.fspath(path)


def misplaced() -> str:
    """What SMDDP_LIBRARY_DIR lacks; "" if nothing."""
    folder = _config.library_dir()
    return _missing(pathlib.Path(folder) / "libsmddp.so") if folder else ""


class Tensor(ctypes.Structure):
    """smddp_tensor of ops/capi/smddp.h."""

    _fields_ = (
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("ndim", ctypes.c_int32),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    )


class Request(ctypes.Structure):
    """smddp_request of ops/capi/smddp.h."""

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
        ("gather_bytes", ctypes.POINTER(ctypes.c_int64)),
    )


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
    _spare_autograph()
    return tf


@functools.cache
def _spare_autograph() -> None:
    """Keeps AutoGraph from rewriting this package, which has no Python control flow on tensors.

    Rewriting it takes seconds in the first call of a step. tf.autograph.experimental.do_not_convert
    would do it for one function each, and cost a call more in eager mode. Where TensorFlow has no
    such list any more, the first call is slow and nothing else changes.
    """
    try:
        from tensorflow.python.autograph.core import config
        from tensorflow.python.autograph.core.config_lib import DoNotConvert
    except ImportError:
        return
    config.CONVERSION_RULES = (DoNotConvert("smddp_tf"), *config.CONVERSION_RULES)


@functools.cache
def ops():
    """The TensorFlow ops, as functions."""
    tf = tensorflow()
    core()
    loaded = tf.load_op_library(_path("libsmddp_tf.so"))
    if _config.blocking_ops():
        _tf_library().smddp_block_ops(b"SMDDP_TEST_BLOCKING_OPS=1")
    return loaded


@functools.cache
def _tf_library() -> ctypes.CDLL:
    """What libsmddp_tf.so has besides the ops."""
    library = ctypes.CDLL(_path("libsmddp_tf.so"))
    library.smddp_block_ops.argtypes = [ctypes.c_char_p]
    library.smddp_block_ops.restype = None
    library.smddp_xla_register.restype = ctypes.c_char_p
    return library


def handover() -> int:
    """How ops complete (ops/tf/async_done.cc): 0 undecided, 1 kept, 2 copied, 3 they block."""
    return _tf_library().smddp_handover()


def ops_block() -> bool:
    """Whether each op holds a thread of TensorFlow's until it is done."""
    return handover() == 3


def _self_test() -> str:
    """Runs an op that completes as the collectives do. Returns "" or what is wrong.

    On a thread of its own, which is in eager mode even while the caller traces a tf.function, and
    whose wait is bounded.
    """
    tf, library = tensorflow(), ops()
    problems = [f"it did not complete within {_SELF_TEST_SECONDS} seconds"]

    def run() -> None:
        try:
            with tf.device("/cpu:0"):
                right = not tf.executing_eagerly() or int(library.smddp_self_test(x=41)) == 42
            problems[:] = [] if right else ["its result is wrong"]
        except tf.errors.OpError as error:
            problems[:] = [error.message]

    thread = threading.Thread(target=run, name="smddp-self-test", daemon=True)
    thread.start()
    thread.join(_SELF_TEST_SECONDS)
    return "".join(problems)


@functools.cache
def check_async_ops() -> None:
    """Checks once that an op may complete after its kernel returned; else ops block from now on.

    Not done when the ops are loaded, because running an op initializes TensorFlow's devices, which
    a script may still want to configure; who reduces gradients has done so. A TF1 graph program
    (eager execution disabled) is not checked: there an eager op would start a second runtime beside
    its session.

    Raises:
      LibraryError: an op does not even complete before its kernel returns.
    """
    problem = _self_test()
    if problem and not ops_block():
        _tf_library().smddp_block_ops(f"a test of it failed: {problem}".encode())
        problem = _self_test()
    if problem:
        raise LibraryError(
            f"an asynchronous op cannot be run in TensorFlow {tensorflow().__version__}: {problem};"
            " use TensorFlow 2.15 to 2.21, or a version of smddp_tf that knows this TensorFlow"
        )


XLA_CALLS = ("typed", "legacy")  # of ops/tf/xla_call.h, the better one first


@functools.cache
def _register_xla(kind: str) -> str:
    """Makes one kind of custom call known to XLA. Returns "" or why that cannot be done."""
    ops()
    return _tf_library().smddp_xla_register(int(kind == "typed")).decode(errors="replace")


def xla_call_kind() -> str:
    """The kind of custom call that this TensorFlow takes, of XLA_CALLS; it is registered.

    Raises:
      LibraryError: there is none; the message says why.
    """
    wanted = _config.xla_call()
    kinds = [wanted] if wanted else XLA_CALLS
    problems = []
    for kind in kinds:
        problem = _register_xla(kind)
        if not problem:
            return kind
        problems.append(f"{kind} custom calls: {problem}")
    raise LibraryError("; ".join(problems))
