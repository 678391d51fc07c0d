"""Reducescatter of a list of tensors."""

from smddp_tf._src.graph import xla
from smddp_tf._src.graph.ops.emit import emit_reduction
from smddp_tf._src.graph.ops.ranks import is_fixed
from smddp_tf._src.job.process_sets import ProcessGroup
from smddp_tf._src.job.reduction import Reduction


def reducescatter(tensors: list, reduction: Reduction) -> list:
    """Reduces tensors of one dtype; each rank receives its part of every tensor's rows."""
    own = [_own_shape(t.shape, reduction.group) for t in tensors]
    outputs = emit_reduction("reducescatter", tensors, reduction, result_shapes=own)
    for output, shape in zip(outputs, own, strict=True):
        output.set_shape(shape)
    return outputs


def _own_shape(shape, group: ProcessGroup):
    """The shape of this rank's part; None if not even the rank is known."""
    if not shape.rank:
        return shape.rank
    rows, *others = shape.as_list()
    return [_own_rows(rows, group), *others]


def _own_rows(rows, group: ProcessGroup):
    """This rank's number of rows, same as smddp_own_rows(); None if unknown."""
    if rows is None or not (xla.inside_jit() or is_fixed(group)):
        return None
    each, odd = divmod(rows, group.size)
    return each + (1 if group.rank < odd else 0)
