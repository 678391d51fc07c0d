"""Lets the gradients of loops and branches have collectives.

The graph of such a gradient may capture tensors of the forward pass and of the function around it,
but TensorFlow fails where it captures an eager tensor, as every graph with a collective does
(order.py), also by calling a function with one. So the function around it captures the tensor
first, and a loop or branch the function's placeholder.
"""

import functools

from smddp_tf._graph import order
from smddp_tf._graph.framework import tensorflow

tensorflow()

from tensorflow.python.framework.func_graph import FuncGraph  # noqa: E402
from tensorflow.python.framework.ops import EagerTensor  # noqa: E402
from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph  # noqa: E402


def capture_outside_first() -> None:
    """Makes the graphs of loops and branches capture what keeps order by way of those outside."""
    capture = ControlFlowFuncGraph.capture

    @functools.wraps(capture)
    def capture_from_outside(graph, tensor, *args, **kwargs):
        if isinstance(tensor, EagerTensor) and order.keeps_order(tensor):
            if isinstance(graph.outer_graph, FuncGraph):
                tensor = graph.outer_graph.capture(tensor)
        return capture(graph, tensor, *args, **kwargs)

    ControlFlowFuncGraph.capture = capture_from_outside
