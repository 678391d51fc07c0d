"""Numbers the calls of functions in TF1 sessions, whose order is not fixed.

A session may run two calls of one function at the same time, and each rank in another order, so the
name of a collective in the function does not say which call it belongs to. The number of the call
does: TensorFlow evaluates a capture by reference whenever it adds a call of the function to a graph
(as FuncGraph.capture_call_time_value, which refuses graphs of sessions, says), and graphs are built
in the same order on all ranks. A call in a loop has another number in each iteration.
"""

import weakref
from typing import Any

from smddp_tf._src.graph import library
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.graph.jit import caller_graph_scope, inside_jit

tf = tensorflow()

from tensorflow.python.framework.func_graph import FuncGraph  # noqa: E402
from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph  # noqa: E402

tf.no_gradient("SmddpIteration")

_CAPTURE = "smddp_tf_call"
# Mixes the number of a call into that of the call around it.
_MULTIPLIER = 1_000_003


def function_graph():
    """The current function's or TF1 graph, outside of any loop or cond being traced."""
    graph = tf.compat.v1.get_default_graph()
    while isinstance(graph, ControlFlowFuncGraph):
        graph = graph.outer_graph
    return graph


def call_number():
    """The number of the current call of the function that is being traced, counted from 1.

    An int64 scalar; 0 outside of functions. Calls inside other functions get a number of their own
    for each call of those.
    """
    graph = function_graph()
    if not isinstance(graph, FuncGraph):
        return tf.constant(0, tf.int64)
    captures = graph._function_captures
    if _CAPTURE not in captures.by_ref_internal:
        with graph.as_default(), tf.device("/cpu:0"):
            inside = tf.compat.v1.placeholder(tf.int64, [], name=_CAPTURE)
        spec = tf.TensorSpec([], tf.int64)
        captures.add_or_replace(
            key=_CAPTURE,
            external=_next_call(spec),
            internal=inside,
            tracetype=spec,
            is_by_ref=True,
        )
    return captures.by_ref_internal[_CAPTURE]


def _next_call(spec):
    """A capture's closure: returns the number of a new call in the graph that is being built."""
    counts: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    def number() -> list:
        graph = function_graph()
        counts[graph] = counts.get(graph, 0) + 1
        with caller_graph_scope(), tf.device("/cpu:0"):
            called = call_number() * _MULTIPLIER + counts[graph]
            # Iterations of a compiled loop follow each other, and are counted.
            return [called if inside_jit() else called + library.ops().smddp_iteration()]

    closure: Any = number
    closure.output_spec = spec
    return closure
