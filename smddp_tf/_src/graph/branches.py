"""Branches of a step that are seldom taken, and cost little in the steps that do not take them.

tf.cond passes the handle of each variable that a branch uses through an op of its own, and
TensorFlow runs that op whether the branch is taken or not: some 3 us for each variable and step.
Here all handles reach the branch as one tensor, which it takes apart.

For TensorFlow's automatic control dependencies that tensor would be one resource, other than those
of the variables. So a resolver tells it that an op which takes the tensor touches each of them.
"""

from collections.abc import Callable, Iterator
from typing import Any

from smddp_tf._src.graph import jit
from smddp_tf._src.graph.framework import tensorflow

tf = tensorflow()

from tensorflow.python.framework import auto_control_deps  # noqa: E402
from tensorflow.python.framework.ops import EagerTensor  # noqa: E402

_HANDLES = "_smddp_tf_packed_handles"
_KNOWN = "_smddp_tf_packed"


def run_if(condition: Any, body: Callable[[], Any]) -> None:
    """Runs `body` if `condition` holds, in program order; what it returns is not used.

    Args:
      condition: a scalar of bool.
      body: creates no variables. In a tf.function it is traced once, whether it is to run or not.
    """

    def branch():
        body()
        return tf.constant(True)

    if not tf.executing_eagerly() and not jit.inside_jit():
        branch = _with_packed_handles(branch)
    tf.cond(condition, branch, lambda: tf.constant(False))


def _with_packed_handles(branch: Callable[[], Any]) -> Callable[[], Any]:
    """A function to call in a graph, which captures one tensor for all handles of variables."""
    attributes = {"_noinline": True}  # ops of its own would be run in steps that do not take it
    traced = tf.function(branch, autograph=False, experimental_attributes=attributes)
    function = traced.get_concrete_function()
    captured = function.captured_inputs
    handles = [one for one in captured if _is_on_host(one)]
    if not handles:
        return branch
    with tf.init_scope(), tf.device("/cpu:0"):
        packed = tf.raw_ops.Pack(values=handles, axis=0)
    setattr(packed, _HANDLES, handles)

    def call():
        function.add_to_graph(tf.compat.v1.get_default_graph())
        unpacked = iter(tf.unstack(packed, num=len(handles)))
        inputs = [next(unpacked) if _is_on_host(one) else one for one in captured]
        name, kinds = function.name, [tf.bool]
        return tf.raw_ops.StatefulPartitionedCall(args=inputs, Tout=kinds, f=name)[0]

    return call


def _is_on_host(tensor: Any) -> bool:
    """Whether it is the handle of a variable, or of another resource, that no GPU has."""
    if not isinstance(tensor, EagerTensor) or tensor.dtype != tf.resource:
        return False
    is_packed = tensor.shape.rank != 0
    return not is_packed and tf.DeviceSpec.from_string(tensor.device).device_type == "CPU"


def _root(tensor: Any) -> Any:
    """What a placeholder of nested functions stands for, as far out as it was captured."""
    while not isinstance(tensor, EagerTensor):
        outside = [out for out, inside in getattr(tensor.graph, "captures", ()) if inside is tensor]
        if not outside:
            break
        (tensor,) = outside
    return tensor


def _packed_in(graph: Any) -> dict:
    """What each placeholder for packed handles stands for: its id -> the graph's placeholders."""
    captures = getattr(graph, "captures", ())
    known: tuple = getattr(graph, _KNOWN, (None, {}))
    if known[0] is not captures:
        roots = {}
        for outside, inside in captures:
            if inside.dtype == tf.resource:
                roots[id(_root(outside))] = outside, inside
        packed = {
            id(inside): [roots[id(one)][1] for one in handles if id(one) in roots]
            for outside, inside in roots.values()
            for handles in _handles_of(outside)
        }
        known = captures, packed
        setattr(graph, _KNOWN, known)
    return known[1]


def _handles_of(tensor: Any) -> Iterator[list]:
    """The handles that a tensor has packed; nothing for other tensors."""
    handles = getattr(_root(tensor), _HANDLES, None)
    if handles is not None:
        yield handles


@auto_control_deps.register_acd_resource_resolver
def _packed_resolver(op, reads, writes) -> bool:
    """Adds the variables whose handles are packed in an input to those that an op writes."""
    packed = _packed_in(op.graph)
    if not packed:
        return False
    found = [handle for one in op.inputs for handle in packed.get(id(one), ())]
    added = [handle for handle in found if handle not in writes]
    for handle in added:
        reads.discard(handle)
        writes.add(handle)
    return bool(added)
