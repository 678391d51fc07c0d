"""What collectives accept, checked before anything is sent."""

from __future__ import annotations

from smddp_tf._job import basics
from smddp_tf._job.process_sets import global_process_set
from smddp_tf._job.reduce_op import Average, ReduceOp, Sum

REDUCIBLE = ("float16", "bfloat16", "float32", "float64", "uint8", "int8", "int32", "int64")


MOVABLE = (*REDUCIBLE, "bool", "int16", "uint16")


def resolve_op(average, op) -> ReduceOp:
    """Horovod's rule for its old `average` and its new `op` argument.

    Raises:
      ValueError: both are given, or op is unknown or not supported.
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
    """Refuses a dtype before anything is sent.

    Raises:
      TypeError: the tensor's dtype is not among the accepted ones.
    """
    if tensor.dtype.base_dtype.name not in accepted:
        raise TypeError(
            f"{what} of {tensor.dtype.base_dtype.name} is not supported; it takes "
            + ", ".join(accepted)
        )


def check_root(root_rank: int, process_set=global_process_set) -> int:
    """Refuses a root (a rank of the job) that is not in the process set.

    Raises:
      ValueError: it is not.
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
