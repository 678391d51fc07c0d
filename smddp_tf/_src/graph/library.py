"""Loads the TensorFlow op library, tests asynchronous completion, and registers XLA calls."""

import contextlib
import ctypes
import functools
import threading

from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job import config, native
from smddp_tf.errors import LibraryError

# Limit of the self-test, which takes about 1 ms on an idle machine.
_SELF_TEST_SECONDS = 10


@functools.cache
def _op_library():
    """TensorFlow finds a library's ops only if it is the first to load it."""
    native.core()
    return tensorflow().load_op_library(native.library_path("libsmddp_tf.so"))


@functools.cache
def ops():
    """The module of TensorFlow op functions, loaded on first use."""
    loaded = _op_library()
    if tensorflow_places():
        _tf_library().smddp_register_gpu_kernels()
    if config.blocking_ops():
        _tf_library().smddp_block_ops(b"SMDDP_TEST_BLOCKING_OPS=1")
    return loaded


@functools.cache
def tensorflow_places() -> bool:
    """Whether ops are placed by TensorFlow: it has kernels of theirs for GPUs."""
    return config.gpu_kernels()


def where_tensors_are():
    """A context that places ops: on the CPU, or where TensorFlow does."""
    return contextlib.nullcontext() if tensorflow_places() else tensorflow().device("/cpu:0")


@functools.cache
def only_cpus() -> bool:
    """Whether the CPU is the only place for an eager op, so that a context need not say so."""
    return {one.device_type for one in tensorflow().config.list_physical_devices()} == {"CPU"}


@functools.cache
def _tf_library() -> ctypes.CDLL:
    """libsmddp_tf.so's C functions, as opposed to its ops."""
    _op_library()
    library = ctypes.CDLL(native.library_path("libsmddp_tf.so"))
    library.smddp_block_ops.argtypes = [ctypes.c_char_p]
    library.smddp_block_ops.restype = None
    library.smddp_xla_register.restype = ctypes.c_char_p
    return library


# How ops complete (async_done.cc): not known yet; TensorFlow's callback is kept, or copied; they
# block.
HANDOVERS = ("undecided", "kept", "copied", "blocking")


def handover() -> int:
    """How ops complete: an index of HANDOVERS."""
    return _tf_library().smddp_handover()


def ops_block() -> bool:
    """Whether ops are blocking: each occupies a TensorFlow thread until it is done."""
    return HANDOVERS[handover()] == "blocking"


def _self_test() -> str:
    """Runs an op that completes in the same way as the collectives. Returns "" or the problem.

    Runs on a separate thread, which is in eager mode even while the caller traces a tf.function,
    and which can be waited for with a timeout.
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
    """Checks once that ops can complete asynchronously; otherwise makes them blocking.

    Not done at load time, because running an op initializes TensorFlow's devices, which a script
    may still want to configure; by the first collective it has. TF1 graph programs (eager execution
    disabled) are not checked: an eager op would start a second runtime beside the session.

    Raises:
      LibraryError: even a blocking op does not complete.
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


XLA_CALLS = ("typed", "legacy")  # see ops/tf/xla/xla_call.h; in order of preference


@functools.cache
def _register_xla(kind: str) -> str:
    """Registers one kind of custom call with XLA. Returns "" or why it failed."""
    ops()
    return _tf_library().smddp_xla_register(int(kind == "typed")).decode(errors="replace")


def xla_call_kind() -> str:
    """Registers and returns the best of XLA_CALLS that this TensorFlow supports.

    Raises:
      LibraryError: it supports none; the message says why.
    """
    wanted = config.xla_call()
    kinds = [wanted] if wanted else XLA_CALLS
    problems = []
    for kind in kinds:
        problem = _register_xla(kind)
        if not problem:
            return kind
        problems.append(f"{kind} custom calls: {problem}")
    raise LibraryError("; ".join(problems))
