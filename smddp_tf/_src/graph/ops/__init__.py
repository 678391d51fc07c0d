"""One typed function for each TensorFlow op, with its XLA counterpart; gradients.py has gradients.

All tensors of a call have one dtype. The ops run on the CPU. `root` is always a rank of the job.
order.py keeps the ops in program order.
"""

from smddp_tf._src.graph.control_flow import capture_outside_first, keep_order_in_gradients
from smddp_tf._src.graph.datasets import refuse_in_parallel_functions
from smddp_tf._src.graph.ops import gradients, vectorized  # noqa: F401 - they register themselves
from smddp_tf._src.graph.ops.allgather import allgather
from smddp_tf._src.graph.ops.allreduce import allreduce
from smddp_tf._src.graph.ops.alltoall import alltoall
from smddp_tf._src.graph.ops.barrier import barrier
from smddp_tf._src.graph.ops.broadcast import broadcast
from smddp_tf._src.graph.ops.join import join
from smddp_tf._src.graph.ops.reducescatter import reducescatter

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "join",
    "reducescatter",
]

capture_outside_first()
keep_order_in_gradients()
refuse_in_parallel_functions()
