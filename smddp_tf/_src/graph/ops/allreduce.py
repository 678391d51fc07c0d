"""Allreduce of a list of tensors."""

from smddp_tf._src.graph.ops.emit import emit_reduction
from smddp_tf._src.job.reduction import Reduction


def allreduce(tensors: list, reduction: Reduction) -> list:
    """Reduces each of a list of tensors of one dtype."""
    return emit_reduction("allreduce", tensors, reduction)
