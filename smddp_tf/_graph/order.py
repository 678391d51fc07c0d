"""In which order collectives run, and how those of different ranks find each other.

TensorFlow chains stateful ops only inside one function body; a nested function, a loop or a cond
that touches a variable is outside that chain. But ops that touch the same resource keep program
order everywhere (automatic control dependencies), and TensorFlow lets a library say which resources
an op touches. Ours all touch one thing, a constant: a graph that has a collective captures it, so
functions, loops and conds that hold collectives have it among their inputs, and touch it too.
Unlike the handle of a variable it may be captured by a function that ends in a SavedModel.

Inside jit_compile=True that is not enough: XLA runs what does not depend on each other in any
order. There each call also reads a variable and writes it (xla.py).

A TF1 graph has no order at all, and several threads have none among each other. There collectives
are matched by name, in the order of the first rank of the set (ops/engine/channel.h).
"""

import functools
import re
import threading

from smddp_tf._graph.framework import tensorflow

tf = tensorflow()

from tensorflow.python.framework import auto_control_deps  # noqa: E402
from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph  # noqa: E402

# How an operation meets its counterparts; of ops/collective/request.h.
IN_ORDER, PERHAPS_THREADS, BY_NAME = range(3)

_CAPTURED = "_smddp_tf_captured"
_SITES = "smddp_tf_sites"
_NAMES = "smddp_tf_names"
# Stateful ops of ours that wait for nobody; buckets start as soon as they can.
_FREE_OPS = ("SmddpPlanBucket", "SmddpQuery", "SmddpSelfTest")
_constants: list = []  # the one of _constant(), once there is a graph with a collective


def _constant():
    """What collectives touch. TensorFlow would copy a small one into each graph."""
    if not _constants:
        with tf.init_scope(), tf.device("/cpu:0"):
            _constants.append(tf.zeros([256], tf.int32))
    return _constants[0]


@functools.cache
def variable_handle():
    """The handle of the variable by which XLA keeps order."""
    with tf.init_scope(), tf.device("/cpu:0"):
        handle = tf.raw_ops.VarHandleOp(dtype=tf.int32, shape=[], shared_name="smddp_tf_order")
        tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(0))
    return handle


def _captured(graph):
    """The graph's own name for the constant; None if no collective is in it."""
    captures = getattr(graph, "captures", ())
    known = getattr(graph, _CAPTURED, (None, None))
    if known[0] is not captures:
        own = (inside for outside, inside in captures if outside is _constant())
        known = captures, next(own, None)
        setattr(graph, _CAPTURED, known)
    return known[1]


@auto_control_deps.register_acd_resource_resolver
def _smddp_tf_resolver(op, reads, writes) -> bool:
    """Tells TensorFlow that an op touches the constant. Returns whether that is news."""
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
    """Whether the graph that is being built ends up in a TF1 session."""
    if tf.executing_eagerly():
        return False
    with tf.init_scope():
        return not tf.executing_eagerly()


def keep() -> None:
    """Keeps the collective that is emitted next in program order, if it is in a function."""
    if not tf.executing_eagerly() and not in_session():
        tf.compat.v1.get_default_graph().capture(_constant())


def matching() -> int:
    """How the operations that are emitted now meet their counterparts on other ranks."""
    if in_session():
        return BY_NAME
    return PERHAPS_THREADS if _in_own_thread() else IN_ORDER


def _in_own_thread() -> bool:
    """Whether this is a thread that the script started: not the main one, nor TensorFlow's.

    TensorFlow runs tf.py_function on threads of its own, but in program order.
    """
    thread = threading.current_thread()
    foreign = isinstance(thread, threading._DummyThread)
    return thread is not threading.main_thread() and not foreign


def _function_graph():
    """The graph of the function, or the TF1 graph, in which a loop or cond is traced now."""
    graph = tf.compat.v1.get_default_graph()
    while isinstance(graph, ControlFlowFuncGraph):
        graph = graph.outer_graph
    return graph


def unique_name(name: str) -> str:
    """The name, or in a graph that has it already one with a number, as TensorFlow's ops have."""
    names = tf.compat.v1.get_default_graph().get_collection_ref(_NAMES)
    names.append(name)
    count = names.count(name)
    return name if count == 1 else f"{name}#{count}"


def site_name(kind: str) -> str:
    """The default name of a collective: its kind and where it is called.

    Collectives of one function are numbered as they are traced, so that ranks that run them in
    different orders see a mismatch and not wrong numbers. A cond or a loop belongs to the function
    around it. An eager call has no number, since one rank may have made more of them.
    """
    if tf.executing_eagerly():
        # "Thread-3 (evaluate)"; one rank may have started more threads, so numbers say nothing.
        thread = re.sub(r"[-_]?\d+", "", threading.current_thread().name)
        return f"{kind} ({thread})" if _in_own_thread() else kind
    graph = _function_graph()
    sites = graph.get_collection_ref(_SITES)
    if not sites:
        sites.append(0)
    sites[0] += 1
    # TensorFlow numbers functions of one name by what else the process has traced.
    function = re.sub(r"_\d+$", "", getattr(graph, "name", ""))
    return f"{function}/{kind}.{sites[0]}" if function else f"{kind}.{sites[0]}"
