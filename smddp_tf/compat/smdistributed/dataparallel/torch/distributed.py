"""smdistributed.dataparallel.torch.distributed, of SMDDP 1: torch.distributed on this backend."""

from torch import distributed

import smddp_tf.torch  # noqa: F401 - registers the backend
from smddp_tf._src.job import basics
from smddp_tf.compat.environment import torch_number


class ReduceOp:
    """What all_reduce() does with the ranks' values; AVERAGE is SMDDP's name of PyTorch's AVG."""

    SUM = distributed.ReduceOp.SUM
    AVERAGE = AVG = distributed.ReduceOp.AVG
    MIN = distributed.ReduceOp.MIN
    MAX = distributed.ReduceOp.MAX
    PRODUCT = distributed.ReduceOp.PRODUCT


reduce_op = ReduceOp


def __getattr__(name: str):
    """Every other name is PyTorch's own."""
    if name.startswith("_") or not hasattr(distributed, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(distributed, name)


def is_available() -> bool:
    """Whether a launcher has started this process as a rank; a script alone trains without it."""
    return torch_number("WORLD_SIZE") is not None


def init_process_group(*args, **options) -> None:
    """torch.distributed.init_process_group() with the backend smddp, whichever is given.

    SMDDP 1 took arguments for parity with PyTorch, and had no other backend.
    """
    options.pop("backend", None)
    distributed.init_process_group("smddp", *args[1:], **options)


def get_rank(group=None) -> int:
    """This process's rank; before init_process_group(), the launcher's number."""
    if distributed.is_initialized():
        return distributed.get_rank(group)
    return torch_number("RANK") or 0


def get_world_size(group=None) -> int:
    """The number of ranks; before init_process_group(), the launcher's number."""
    if distributed.is_initialized():
        return distributed.get_world_size(group)
    return torch_number("WORLD_SIZE") or 1


def get_local_rank() -> int:
    """This process's rank on its node, also before init_process_group(), to choose a GPU by it."""
    return basics.local_rank() if basics.is_initialized() else torch_number("LOCAL_RANK") or 0


def get_local_size() -> int:
    """The number of ranks on this node."""
    return basics.local_size() if basics.is_initialized() else torch_number("LOCAL_WORLD_SIZE") or 1
