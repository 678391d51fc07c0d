"""Allgather of a tensor whose first dimension may differ between ranks."""

from smddp_tf._src.graph import xla
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.graph.ops.emit import call_in_jit, emit_matched
from smddp_tf._src.job.process_sets import ProcessGroup

tf = tensorflow()


def allgather(tensor, name: str, group: ProcessGroup, description: str = ""):
    """Concatenates the ranks' tensors along the first dimension, which may differ between ranks.

    description is what else must be equal on all ranks, a line for each thing.
    """
    if xla.inside_jit():
        return _allgather_in_jit(tensor, name, group, description)
    output = emit_matched(
        "allgather", group, tensor=tensor, tensor_name=name, description=description
    )
    if tensor.shape.rank:
        output.set_shape([None, *tensor.shape.as_list()[1:]])
    return output


def _allgather_in_jit(tensor, name: str, group: ProcessGroup, description: str):
    """XLA needs a static result shape, so all ranks' tensors must have the same shape."""
    tensor = tf.reshape(tensor, [1]) if tensor.shape.rank == 0 else tensor
    shape = tensor.shape.as_list()
    return call_in_jit(
        "allgather",
        [tensor],
        description=description,
        result_shapes=[[group.size * shape[0], *shape[1:]] if None not in shape else shape],
        name=name,
        group=group,
    )[0]
