"""In which order collectives run, and how those of different ranks find each other.

TensorFlow chains stateful ops only inside one function body; a nested function, a loop or a cond
that touches a variable is outside that chain. But ops that touch the same resource keep program
order everywhere, since functions, loops and conds capture it (automatic control dependencies). So
each collective has the handle of a variable of ours as an input, which its kernel never reads.
Inside jit_compile=True that is not enough: XLA runs what does not depend on each other in any
order, so there each call reads the variable and writes it (_xla.py).

A TF1 graph has no order at all, and several threads have none among each other. There collectives
are matched by name, in the order of the first rank of the set (ops/engine/channel.h).
"""

import functools
import re
import threading

from smddp_tf import _native

tf = _native.tensorflow()

from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph  # noqa: E402

# How an operation meets its counterparts; of ops/collective/request.h.
IN_ORDER, PERHAPS_THREADS, BY_NAME = range(3)

_SITES = "smddp_tf_sites"
_NAMES = "smddp_tf_names"
_first_eager_thread: list = []


@functools.cache
def _eager_handle():
    """The handle of the variable, which is made when the first graph has a collective."""
    with tf.init_scope(), tf.device("/cpu:0"):
        handle = tf.raw_ops.VarHandleOp(dtype=tf.int32, shape=[], shared_name="smddp_tf_order")
        # XLA looks at its value; the graphs of other modes do not.
        tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(0))
    return handle


def _in_session() -> bool:
    """Whether the graph that is being built ends up in a TF1 session."""
    if tf.executing_eagerly():
        return False
    with tf.init_scope():
        return not tf.executing_eagerly()


def handles() -> list:
    """What an op takes as its input `order`: the handle, or nothing where it has no effect."""
    if tf.executing_eagerly() or _in_session():
        return []
    return [_eager_handle()]


def matching() -> int:
    """How the operations that are emitted now meet their counterparts on other ranks."""
    if _in_session():
        return BY_NAME
    main = threading.current_thread() is threading.main_thread()
    return IN_ORDER if main else PERHAPS_THREADS


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
        # Threads can only be told apart by their names; one alone may have any.
        thread = threading.current_thread()
        if not _first_eager_thread:
            _first_eager_thread.append(thread)
        own = thread is threading.main_thread() or thread is _first_eager_thread[0]
        return kind if own else f"{kind} ({thread.name})"
    graph = _function_graph()
    sites = graph.get_collection_ref(_SITES)
    if not sites:
        sites.append(0)
    sites[0] += 1
    # TensorFlow numbers functions of one name by what else the process has traced.
    function = re.sub(r"_\d+$", "", getattr(graph, "name", ""))
    return f"{function}/{kind}.{sites[0]}" if function else f"{kind}.{sites[0]}"
