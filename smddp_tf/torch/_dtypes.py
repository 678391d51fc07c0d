"""PyTorch's dtypes and reduce operations, as the core numbers them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import ReduceOp as TorchOp

from smddp_tf._src.job.reduce_op import ReduceOp

# smddp_dtype in ops/capi/smddp.h.
NUMBERS = {
    torch.float32: 1,
    torch.float64: 2,
    torch.int32: 3,
    torch.uint8: 4,
    torch.int16: 5,
    torch.int8: 6,
    torch.int64: 9,
    torch.bool: 10,
    torch.bfloat16: 14,
    torch.uint16: 17,
    torch.float16: 19,
}
BYTE = NUMBERS[torch.uint8]

# What the core sums; it only moves the others.
REDUCIBLE = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
)
_OPS = {
    TorchOp.SUM: ReduceOp.Sum,
    TorchOp.AVG: ReduceOp.Average,
    TorchOp.MIN: ReduceOp.Min,
    TorchOp.MAX: ReduceOp.Max,
    TorchOp.PRODUCT: ReduceOp.Product,
}

# How the core reduces bools, as bytes of 0 and 1.
_OF_BOOLS = {
    TorchOp.SUM: ReduceOp.Max,
    TorchOp.MAX: ReduceOp.Max,
    TorchOp.BOR: ReduceOp.Max,
    TorchOp.MIN: ReduceOp.Min,
    TorchOp.PRODUCT: ReduceOp.Min,
    TorchOp.BAND: ReduceOp.Min,
    TorchOp.BXOR: ReduceOp.Sum,  # its last bit
}

# What each rank computes itself, from the values of all.
_BITWISE = {
    TorchOp.BAND: torch.bitwise_and,
    TorchOp.BOR: torch.bitwise_or,
    TorchOp.BXOR: torch.bitwise_xor,
}
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def kind_of(op: Any) -> Any:
    """The member of ReduceOp.RedOpType; torch's options hold an object around it."""
    return getattr(op, "op", op)


def core_op(op: Any) -> tuple[ReduceOp, float] | None:
    """The core's operation and the factor before it; None if the core has none."""
    if kind_of(op) == TorchOp.PREMUL_SUM:
        return ReduceOp.Sum, float(op.factor)
    found = _OPS.get(kind_of(op))
    return None if found is None else (found, 1.0)


def op_of_bools(op: Any) -> ReduceOp | None:
    """The core's operation on bools as bytes; None if there is none."""
    return _OF_BOOLS.get(kind_of(op))


def fold_of(op: Any, dtype: torch.dtype) -> Callable[..., Any] | None:
    """What combines the values of two ranks, where the core does not; None if nothing does."""
    return _BITWISE.get(kind_of(op)) if dtype in _INTEGERS else None


def op_name(op: Any) -> str:
    """As in `ReduceOp.SUM`."""
    return getattr(kind_of(op), "name", str(op))
