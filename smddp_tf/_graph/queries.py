"""rank() and the like as tensors: asked when the graph runs, not when it is made.

In eager mode they answer at once. All return an int32 scalar, and raise
tf.errors.FailedPreconditionError when they run before init(), and tf.errors.InvalidArgumentError
for a process set that is not there.
"""

from __future__ import annotations

from smddp_tf._graph import library
from smddp_tf._graph.framework import tensorflow

tf = tensorflow()

_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE, _INCLUDED = range(5)  # of ops/tf/kernels/query_ops.cc


def _query(query: int, process_set_id: int, name):
    with tf.device("/cpu:0"):
        answer = library.ops().smddp_query(query=query, process_set=process_set_id, name=name)
    answer.set_shape([])
    return answer


def rank_op(name: str | None = None):
    """This process's number in the job."""
    return _query(_RANK, 0, name)


def size_op(process_set_id: int = 0, name: str | None = None):
    """The number of ranks in the job, or in the process set of that number."""
    return _query(_SIZE, process_set_id, name)


def local_rank_op(name: str | None = None):
    """This process's number among the ranks that share memory with it."""
    return _query(_LOCAL_RANK, 0, name)


def local_size_op(name: str | None = None):
    """The number of ranks that share memory with this one."""
    return _query(_LOCAL_SIZE, 0, name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None):
    """1 if this process is in the process set of that number, else 0."""
    return _query(_INCLUDED, process_set_id, name)


tf.no_gradient("SmddpQuery")
