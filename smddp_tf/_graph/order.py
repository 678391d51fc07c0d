"""Keeps collectives in program order, and decides how the ranks' collectives are matched.

TensorFlow orders stateful ops only within one function body, not across nested functions, loops and
conds. But ops that touch the same resource keep program order everywhere (automatic control
dependencies), and a library can register which resources its ops touch. Ours all touch one
constant. A graph with a collective captures it, so functions, loops and conds that contain
collectives have it as an input and touch it too. Unlike the handle of a variable, it may be
captured by a function that is saved in a SavedModel.

Inside jit_compile=True that is not enough, since XLA reorders calls without data dependencies.
There each call also reads and writes a variable (xla.py).

TF1 graphs and threads have no program order. Their collectives are matched by name, in the order of
the set's first rank (ops/engine/channel.h).
"""

import functools
import re
import sys
import threading

from smddp_tf._graph.calls import function_graph
from smddp_tf._graph.framework import tensorflow
from smddp_tf._job.enums import Matching

tf = tensorflow()

from tensorflow.python.eager import context  # noqa: E402
from tensorflow.python.framework import auto_control_deps  # noqa: E402

_PACKAGE = __name__.split(".")[0] + "."
_CAPTURED = "_smddp_tf_captured"
_SITES = "smddp_tf_sites"
_NAMES = "smddp_tf_names"
# Our stateful ops that need no program order. Buckets start as soon as they can.
_FREE_OPS = ("SmddpPlanBucket", "SmddpIteration", "SmddpQuery", "SmddpSelfTest")
_constants: list = []  # holds the constant of _constant() once a graph has a collective


def _constant():
    """The constant that collectives touch. TensorFlow inlines small ones, so it is larger."""
    if not _constants:
        with tf.init_scope(), tf.device("/cpu:0"):
            _constants.append(tf.constant([0] * 256))  # tf.zeros() would run an op
    return _constants[0]


def variable_handle():
    """The handle of the variable that keeps calls in order inside XLA.

    XLA takes variables of the device that it compiles for only, so each device has one.
    """
    device = context.context().device_name
    if not device:
        gpus = tf.config.list_logical_devices("GPU")
        device = gpus[0].name if gpus else "/cpu:0"
    return _variable_handle(device)


@functools.cache
def _variable_handle(device: str):
    with tf.init_scope(), tf.device(device):
        handle = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name="smddp_tf_order")
        tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(0, tf.int64))
    return handle


def _captured(graph):
    """The graph's placeholder for the captured constant; None without collectives in the graph."""
    captures = getattr(graph, "captures", ())
    known = getattr(graph, _CAPTURED, (None, None))
    if known[0] is not captures:
        own = (inside for outside, inside in captures if outside is _constant())
        known = captures, next(own, None)
        setattr(graph, _CAPTURED, known)
    return known[1]


def touches_collectives(function) -> bool:
    """Whether a concrete function contains a collective, or calls a function that does."""
    if not _constants:
        return False
    captured = getattr(tf.compat.v1.get_default_graph(), "captures", ())
    known = [_constant(), *(inside for outside, inside in captured if outside is _constant())]
    inputs = getattr(function, "captured_inputs", ())
    return any(one is each for one in inputs for each in known)


@auto_control_deps.register_acd_resource_resolver
def _smddp_tf_resolver(op, reads, writes) -> bool:
    """Adds the constant to the resources that an op writes. Returns whether it was added."""
    del reads
    touched = _captured(op.graph) if _constants else None
    if touched is None or touched in writes:
        return False
    ours = op.type.startswith("Smddp") and op.type not in _FREE_OPS
    if not ours and not any(one is touched for one in op.inputs):
        return False
    writes.add(touched)
    return True


def in_session() -> bool:
    """Whether the graph that is being built will run in a TF1 session."""
    if tf.executing_eagerly():
        return False
    with tf.init_scope():
        return not tf.executing_eagerly()


def keep() -> None:
    """Keeps the next emitted collective in program order, if it is inside a function."""
    if not tf.executing_eagerly() and not in_session():
        tf.compat.v1.get_default_graph().capture(_constant())


def matching() -> Matching:
    """How operations emitted here are matched with those of other ranks."""
    if in_session():
        return Matching.BY_NAME
    in_main = threading.current_thread() is threading.main_thread()
    return Matching.IN_ORDER if in_main else Matching.PERHAPS_THREADS


def _thread_title() -> str:
    """Tells the collectives of this thread from those of others; "" in the main thread.

    It is the name of a thread that the script started, without its number, since ranks may have
    started different threads before. TensorFlow's threads have no names. They run the Python code
    of a tf.data.Dataset (from_generator, tf.py_function) while the main thread trains, so that of
    the function that calls the collective is in the title.
    """
    thread = threading.current_thread()
    if thread is threading.main_thread():
        return ""
    if not isinstance(thread, threading._DummyThread):
        return re.sub(r"[-_]?\d+", "", thread.name)
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_name}, in a thread of TensorFlow's"


def unique_name(name: str) -> str:
    """The name, with a number appended if the graph already uses it, as with TensorFlow's ops."""
    names = tf.compat.v1.get_default_graph().get_collection_ref(_NAMES)
    names.append(name)
    count = names.count(name)
    return name if count == 1 else f"{name}#{count}"


def site_name(kind: str) -> str:
    """The default name of a collective: its kind and the call site.

    Collectives of one function are numbered in tracing order, so that ranks that run them in
    different orders get a mismatch instead of wrong results. A cond or loop counts as part of the
    function around it. Eager calls are not numbered, since one rank may have made more of them.
    """
    if tf.executing_eagerly():
        thread = _thread_title()
        return f"{kind} ({thread})" if thread else kind
    graph = function_graph()
    sites = graph.get_collection_ref(_SITES)
    if not sites:
        sites.append(0)
    sites[0] += 1
    # Drop TensorFlow's suffix, which depends on what else the process has traced.
    function = re.sub(r"_\d+$", "", getattr(graph, "name", ""))
    return f"{function}/{kind}.{sites[0]}" if function else f"{kind}.{sites[0]}"
