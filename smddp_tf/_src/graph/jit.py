"""Whether the graph that is being traced will be compiled by XLA."""

import contextlib
import threading

from smddp_tf._src.graph.framework import tensorflow

tf = tensorflow()

from tensorflow.python.ops import control_flow_ops, control_flow_util  # noqa: E402

_thread = threading.local()


@contextlib.contextmanager
def jit_scope():
    """Marks what is emitted as part of a compiled function.

    The gradient of a compiled function is compiled too, but tf.compat.v1.gradients() emits it where
    TensorFlow does not say so.
    """
    before = getattr(_thread, "jit_scope", False)
    _thread.jit_scope = True
    try:
        yield
    finally:
        _thread.jit_scope = before


def inside_jit() -> bool:
    """Whether the graph being traced will be compiled by XLA."""
    if tf.executing_eagerly():
        return False
    if getattr(_thread, "jit_scope", False):
        return True
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


@contextlib.contextmanager
def caller_graph_scope():
    """Emits into the graph that a function's call is being added to, as the graph was before.

    While a call of a compiled function is added, TensorFlow marks that graph as compiled, whatever
    it is.
    """
    graph = tf.compat.v1.get_default_graph()
    context = graph._get_control_flow_context()
    mark = isinstance(context, control_flow_ops.XLAControlFlowContext)
    graph._set_control_flow_context(context.outer_context if mark else context)
    try:
        yield
    finally:
        graph._set_control_flow_context(context)
