"""Argument checks of the collectives, made before any communication."""

from __future__ import annotations

from smddp_tf._job import basics
from smddp_tf._job.process_sets import global_process_set
from smddp_tf._job.reduce_op import Average, ReduceOp, Sum

REDUCIBLE = ("float16", "bfloat16", "float32", "float64", "uint8", "int8", "int32", "int64")
MOVABLE = (*REDUCIBLE, "bool", "int16", "uint16")


def resolve_op(average, op) -> ReduceOp:
    """Resolves Horovod's old `average` and new `op` argument to a ReduceOp.

    Raises:
      ValueError: both are given, or op is unknown.
    """
    if average is not None and op is not None:
        raise ValueError("give op or average, not both; average is Horovod's old name for op")
    if op is None:
        op = Average if average in (None, True) else Sum
    try:
        return ReduceOp(op)
    except ValueError:
        names = ", ".join(map(str, ReduceOp))
        raise ValueError(f"op={op!r} is unknown; use one of {names}") from None


def check_dtype(tensor, accepted, what: str) -> None:
    """Rejects an unsupported dtype.

    Raises:
      TypeError: the tensor's dtype is not among the accepted ones.
    """
    if tensor.dtype.base_dtype.name not in accepted:
        raise TypeError(
            f"{what} of {tensor.dtype.base_dtype.name} is not supported; it takes "
            + ", ".join(accepted)
        )


def check_root(root_rank: int, process_set=global_process_set) -> int:
    """Rejects a root, numbered in the job, that is not in the process set.

    Raises:
      ValueError: root_rank is out of range or not in the set.
    """
    if not 0 <= int(root_rank) < basics.size():
        last = basics.size() - 1
        raise ValueError(f"root_rank={root_rank} is out of range: the ranks are 0 to {last}")
    if process_set.process_set_id != 0 and int(root_rank) not in process_set.ranks:
        raise ValueError(
            f"root_rank={root_rank} is not in {process_set!r}; it is the rank in the job, not the "
            "one in the set"
        )
    return int(root_rank)
