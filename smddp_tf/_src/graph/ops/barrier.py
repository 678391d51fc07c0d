"""Barrier."""

from smddp_tf._src.graph import xla
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.graph.ops.emit import emit_matched
from smddp_tf._src.job.process_sets import ProcessGroup


def barrier(name: str, group: ProcessGroup):
    """Blocks until every rank of the group has arrived."""
    if xla.inside_jit():
        xla.refuse("barrier")
    return emit_matched("barrier", group, tensor_name=name)


tensorflow().no_gradient("SmddpBarrier")
tensorflow().no_gradient("SmddpUnorderedBarrier")
