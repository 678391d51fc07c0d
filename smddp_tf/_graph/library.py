"""The library of TensorFlow operations: loaded, checked, and how its operations complete."""

import ctypes
import functools
import threading

from smddp_tf._graph.framework import tensorflow
from smddp_tf._job import config, native
from smddp_tf.errors import LibraryError

# It takes one millisecond on an idle machine.
_SELF_TEST_SECONDS = 10


@functools.cache
def ops():
    """The TensorFlow ops, as functions."""
    tf = tensorflow()
    native.core()
    loaded = tf.load_op_library(native.library_path("libsmddp_tf.so"))
    if config.blocking_ops():
        _tf_library().smddp_block_ops(b"SMDDP_TEST_BLOCKING_OPS=1")
    return loaded


@functools.cache
def _tf_library() -> ctypes.CDLL:
    """What libsmddp_tf.so has besides the ops."""
    library = ctypes.CDLL(native.library_path("libsmddp_tf.so"))
    library.smddp_block_ops.argtypes = [ctypes.c_char_p]
    library.smddp_block_ops.restype = None
    library.smddp_xla_register.restype = ctypes.c_char_p
    return library


def handover() -> int:
    """How ops complete: 0 undecided, 1 kept, 2 copied, 3 they block (tf/runtime/async_done.cc)."""
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


XLA_CALLS = ("typed", "legacy")  # of ops/tf/xla/xla_call.h, the better one first


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
    wanted = config.xla_call()
    kinds = [wanted] if wanted else XLA_CALLS
    problems = []
    for kind in kinds:
        problem = _register_xla(kind)
        if not problem:
            return kind
        problems.append(f"{kind} custom calls: {problem}")
    raise LibraryError("; ".join(problems))
