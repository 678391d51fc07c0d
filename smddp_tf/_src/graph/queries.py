"""rank() and similar queries as ops: evaluated when the graph runs, not when it is built.

In eager mode they run immediately. All return an int32 scalar. When run, they raise
tf.errors.FailedPreconditionError before init(), and tf.errors.InvalidArgumentError for a process
set that does not exist; called with anything but a number as the id, TypeError.
"""

from __future__ import annotations

from typing import Any

from smddp_tf._src.graph import library
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.types import Tensor

tf = tensorflow()

# The values match ops/tf/kernels/query_ops.cc.
_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE, _INCLUDED = range(5)


def _query(query: int, process_set_id: int, name: Any) -> Any:
    if isinstance(process_set_id, bool) or not hasattr(process_set_id, "__index__"):
        raise TypeError(
            f"process_set_id={process_set_id!r} is not a whole number; give a process set's "
            "process_set_id"
        )
    with tf.device("/cpu:0"):
        answer = library.ops().smddp_query(query=query, process_set=process_set_id, name=name)
    answer.set_shape([])
    return answer


def rank_op(name: str | None = None) -> Tensor:
    """This process's rank in the job.

    Examples:
      >>> int(hvd.rank_op())
      0
    """
    return _query(_RANK, 0, name)


def size_op(process_set_id: int = 0, name: str | None = None) -> Tensor:
    """The number of ranks in the job, or in the process set with this id.

    Examples:
      >>> int(hvd.size_op())
      1
    """
    return _query(_SIZE, process_set_id, name)


def local_rank_op(name: str | None = None) -> Tensor:
    """This process's rank among the ranks of its node (those that share memory).

    Examples:
      >>> int(hvd.local_rank_op())
      0
    """
    return _query(_LOCAL_RANK, 0, name)


def local_size_op(name: str | None = None) -> Tensor:
    """The number of ranks on this node (those that share memory), including this one.

    Examples:
      >>> int(hvd.local_size_op())
      1
    """
    return _query(_LOCAL_SIZE, 0, name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Tensor:
    """1 if this process is in the process set with this id, else 0.

    Examples:
      >>> int(hvd.process_set_included_op(hvd.global_process_set.process_set_id))
      1
    """
    return _query(_INCLUDED, process_set_id, name)


tf.no_gradient("SmddpQuery")
