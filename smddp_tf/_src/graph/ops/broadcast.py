"""Broadcast of a list of tensors."""

from smddp_tf._src.graph import xla
from smddp_tf._src.graph.ops.emit import call_in_jit, emit_matched
from smddp_tf._src.job.process_sets import ProcessGroup


def broadcast(
    tensors: list, root: int, name: str, group: ProcessGroup, description: str = ""
) -> list:
    """Copies the root's tensors to every rank of the group; description is allgather()'s."""
    if xla.inside_jit():
        return call_in_jit(
            "broadcast", tensors, description=description, root=root, name=name, group=group
        )
    return emit_matched(
        "broadcast",
        group,
        tensors=tensors,
        root_rank=root,
        tensor_name=name,
        description=description,
    )
