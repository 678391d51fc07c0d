"""Lets the gradients of functions, loops and branches have collectives.

The graph of a loop's or branch's gradient may capture tensors of the forward pass and of the
function around it, but TensorFlow fails where it captures an eager tensor, as every graph with a
collective does (order.py), also by calling a function with one. So the function around it captures
the tensor first, and a loop or branch the function's placeholder.

TensorFlow adds no automatic control dependencies to the graphs of gradients (nor to those of
tf.compat.v1.wrap_function). Their collectives had no order, and as such functions have no control
outputs, for which alone TensorFlow waits where it has inlined a call, a second call's collectives
could overtake the first one's. order.py adds what is missing.
"""

import functools

from smddp_tf._src.graph import order
from smddp_tf._src.graph.framework import tensorflow

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


def keep_order_in_gradients() -> None:
    """Has collectives, and calls of what contains one, follow each other in every graph."""
    create = FuncGraph._create_op_internal

    @functools.wraps(create)
    def create_in_order(graph, *args, **kwargs):
        operation = create(graph, *args, **kwargs)
        if not graph._add_control_dependencies:  # TensorFlow will not
            order.add_order_dependency(operation)
        return operation

    FuncGraph._create_op_internal = create_in_order
