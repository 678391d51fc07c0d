"""Reducescatter of a list of tensors."""

from smddp_tf._graph.ops.emit import emit_reduction
from smddp_tf._job.process_sets import Group


def reducescatter(
    tensors: list,
    op: int,
    prescale: float,
    postscale: float,
    name: str,
    group: Group,
    description: str = "",
) -> list:
    """Reduces tensors of one dtype; each rank receives its part of every tensor's rows."""
    own = [_own_shape(t.shape, group) for t in tensors]
    outputs = emit_reduction(
        "reducescatter",
        tensors,
        result_shapes=own,
        description=description,
        op=op,
        prescale=prescale,
        postscale=postscale,
        name=name,
        group=group,
    )
    for output, shape in zip(outputs, own, strict=True):
        output.set_shape(shape)
    return outputs


def _own_shape(shape, group: Group):
    """The shape of this rank's part; None if not even the rank is known."""
    return shape.rank and [_own_rows(shape[0], group), *shape.as_list()[1:]]


def _own_rows(rows, group: Group):
    """This rank's number of rows, same as smddp_own_rows(); None if unknown."""
    if rows is None:
        return None
    each, odd = divmod(rows, group.size)
    return each + (1 if group.rank < odd else 0)
