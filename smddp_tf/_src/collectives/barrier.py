"""Barrier: blocks until all ranks have arrived."""

from __future__ import annotations

from smddp_tf._src.collectives.checks import resolve_name
from smddp_tf._src.graph import ops
from smddp_tf._src.graph.ops.ranks import is_alone
from smddp_tf._src.job.process_sets import ProcessSet, check_process_set, global_process_set


def barrier(process_set: ProcessSet = global_process_set, name: str | None = None) -> None:
    """Blocks until every rank of the process set has called it.

    Examples:
      >>> hvd.barrier()
    """
    group = check_process_set(process_set)
    name = resolve_name(name, "barrier", group)
    if not is_alone(group):
        ops.barrier(name, group)
