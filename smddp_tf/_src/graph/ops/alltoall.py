"""Alltoall of a tensor's rows."""

from smddp_tf._src.graph import xla
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.graph.ops.emit import call_in_jit, emit_matched
from smddp_tf._src.graph.ops.ranks import is_fixed
from smddp_tf._src.job.process_sets import ProcessGroup

tf = tensorflow()


def alltoall(tensor, splits, name: str, group: ProcessGroup):
    """Exchanges rows with all ranks; empty splits mean even ones. Returns (rows, their counts)."""
    if xla.inside_jit():
        if splits.shape.num_elements() != 0:
            xla.refuse("alltoall with splits")
        rows = tensor.shape.as_list()[0] or 0
        return alltoall_in_jit(tensor, name, group), tf.fill([group.size], rows // group.size)
    output, received = emit_matched(
        "alltoall", group, tensor=tensor, splits=splits, tensor_name=name
    )
    if tensor.shape.rank:
        output.set_shape([None, *tensor.shape.as_list()[1:]])
    received.set_shape([group.size if is_fixed(group) else None])
    return output, received


def alltoall_in_jit(tensor, name: str, group: ProcessGroup):
    """Exchanges as many rows with each rank; all ranks' tensors must have the same shape."""
    shape = tensor.shape.as_list()
    if shape[0] is not None and shape[0] % group.size:
        raise ValueError(f"alltoall: {shape[0]} rows are not divided by {group.size} ranks")
    return call_in_jit("alltoall", [tensor], name=name, group=group)[0]
