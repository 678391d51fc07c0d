"""Allreduce of a list of tensors."""

from smddp_tf._graph.ops.emit import emit_reduction
from smddp_tf._job.process_sets import Group


def allreduce(
    tensors: list,
    op: int,
    prescale: float,
    postscale: float,
    name: str,
    group: Group,
    description: str = "",
) -> list:
    """Reduces each of a list of tensors of one dtype over the ranks of the group."""
    return emit_reduction(
        "allreduce",
        tensors,
        description=description,
        op=op,
        prescale=prescale,
        postscale=postscale,
        name=name,
        group=group,
    )
