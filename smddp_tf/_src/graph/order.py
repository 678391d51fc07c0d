"""Keeps collectives in program order, and decides how the ranks' collectives are matched.

TensorFlow orders stateful ops only within one function body, not across nested functions, loops and
conds. But ops that touch the same resource keep program order everywhere (automatic control
dependencies), and a library can register which resources its ops touch. Ours all touch one
constant. A graph with a collective captures it, so functions, loops and conds that contain
collectives have it as an input and touch it too. Unlike the handle of a variable, it may be
captured by a function that is saved in a SavedModel. One that was loaded has a constant of its own,
which is known by its value.

Inside jit_compile=True that is not enough, since XLA reorders calls without data dependencies.
There each call also reads and writes a variable (xla.py).

TF1 graphs and threads have no program order. Their collectives are matched by name, in the order of
the set's first rank (ops/engine/channel.h).
"""

import functools
import threading

import numpy as np

from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job.enums import Matching

tf = tensorflow()

from tensorflow.python.eager import context  # noqa: E402
from tensorflow.python.framework import auto_control_deps  # noqa: E402
from tensorflow.python.framework.ops import EagerTensor  # noqa: E402

_CAPTURED = "_smddp_tf_captured"
_LAST = "_smddp_tf_last"
# Our stateful ops that need no program order. Buckets start as soon as they can.
_FREE_OPS = ("SmddpPlanBucket", "SmddpIteration", "SmddpQuery", "SmddpSelfTest")
# What the constant holds. TensorFlow inlines small ones, so it is larger.
_VALUE = np.frombuffer(b"what smddp_tf collectives touch." * 32, np.int32)
_ORDERS_CALLS = "_smddp_tf_orders_calls"
_HANDLES = "_smddp_tf_handles"
_thread = threading.local()


@functools.cache
def _constant():
    """The constant that collectives touch."""
    with tf.init_scope(), tf.device("/cpu:0"):
        return tf.constant(_VALUE)


def dataset_graph():
    """The graph of the tf.data.Dataset's function in which this is traced, or None."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None and not getattr(graph, "name", "").startswith("Dataset_"):
        graph = getattr(graph, "outer_graph", None)
    return graph


def _handles() -> dict:
    """A device's type and index -> the handle that functions use which this thread traces.

    XLA locks the variables that a function assigns until it ends. With one for all, functions of
    two threads would wait for each other: on this rank one for the lock, and the other for a rank
    on which it is the other way round. TensorFlow's threads run the functions of datasets, whoever
    traces them, so each dataset has its own too.
    """
    owner = dataset_graph() or _thread
    if not hasattr(owner, _HANDLES):
        setattr(owner, _HANDLES, {})
    return getattr(owner, _HANDLES)


def variable_handle():
    """The handle of the variable that keeps calls in order inside XLA.

    XLA takes variables of the device that it compiles for only, so each device has one. It refuses
    two handles of one variable, which threads or two names of a device must not bring.
    """
    device = context.context().device_name
    if not device:
        gpus = tf.config.list_logical_devices("GPU")
        device = gpus[0].name if gpus else "/cpu:0"
    spec, handles = tf.DeviceSpec.from_string(device), _handles()
    key = spec.device_type, spec.device_index
    if key not in handles:
        handles[key] = _new_handle(device)
    return handles[key]


def _new_handle(device: str):
    with tf.init_scope(), tf.device(device):
        name = context.anonymous_name()  # it lives as long as a function that uses it
        handle = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name=name)
        tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(0, tf.int64))
    # Without handle data, with which gradients of loops in branches of loops are refused.
    setattr(handle, _ORDERS_CALLS, True)
    return handle


def _stands_for_constant(tensor) -> bool:
    """Whether a captured tensor is the constant, or that of a SavedModel's function."""
    if not isinstance(tensor, EagerTensor):
        return any(tensor is one for one in _captured(tensor.graph))
    return _is_constant(tensor)


def _is_constant(tensor) -> bool:
    if tensor.dtype != tf.int32 or tensor.shape != _VALUE.shape:
        return False
    return np.array_equal(tensor.numpy(), _VALUE)


def _captured(graph) -> list:
    """The graph's placeholders for captured constants; none without collectives in the graph."""
    captures = getattr(graph, "captures", ())
    known: tuple = getattr(graph, _CAPTURED, (None, []))
    if known[0] is not captures:
        inside = [inside for outside, inside in captures if _stands_for_constant(outside)]
        known = captures, inside
        setattr(graph, _CAPTURED, known)
    return known[1]


def keeps_order(tensor) -> bool:
    """Whether an eager tensor is what keeps collectives in order: a constant or a variable."""
    return _is_constant(tensor) or getattr(tensor, _ORDERS_CALLS, False)


def touches_collectives(function) -> bool:
    """Whether a concrete function contains a collective, or calls a function that does."""
    return any(_stands_for_constant(one) for one in getattr(function, "captured_inputs", ()))


@auto_control_deps.register_acd_resource_resolver
def _smddp_tf_resolver(op, reads, writes) -> bool:
    """Adds the constant to the resources that an op writes. Returns whether it was added."""
    del reads
    touched = _touched(op)
    if touched is None or touched in writes:
        return False
    writes.add(touched)
    return True


def _touched(op):
    """The graph's placeholder for the constant if the op, or what it calls, is ordered by it."""
    known = _captured(op.graph)
    if not known:
        return None
    ours = op.type.startswith("Smddp") and op.type not in _FREE_OPS
    return known[0] if ours or any(one is each for one in op.inputs for each in known) else None


def add_order_dependency(op) -> None:
    """Orders an op of a graph to which TensorFlow adds no control dependencies.

    Each op that touches the constant follows the last one of its graph, and is a control output,
    for which what calls the graph's function waits.
    """
    if _touched(op) is None:
        return
    graph = op.graph
    op._add_control_inputs(getattr(graph, _LAST, []))
    setattr(graph, _LAST, [op])
    graph.control_outputs.append(op)


def in_session() -> bool:
    """Whether the graph that is being built will run in a TF1 session."""
    if tf.executing_eagerly():
        return False
    with tf.init_scope():
        return not tf.executing_eagerly()


def capture_order_token() -> None:
    """Keeps the next emitted collective in program order, if it is inside a function."""
    if not tf.executing_eagerly() and not in_session():
        tf.compat.v1.get_default_graph().capture(_constant())


def matching() -> Matching:
    """How operations emitted here are matched with those of other ranks."""
    if in_session():
        return Matching.BY_NAME
    in_main = threading.current_thread() is threading.main_thread()
    return Matching.IN_ORDER if in_main else Matching.IN_ORDER_OR_BY_NAME
