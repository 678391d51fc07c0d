"""Validates the options that the tape and the optimizer share."""

import dataclasses
import numbers
from collections.abc import Sequence
from typing import Any

from smddp_tf._src.collectives.checks import integer, resolve_op
from smddp_tf._src.compression import Compression, check_compressor, describe
from smddp_tf._src.job.process_sets import ProcessGroup, ProcessSet, global_process_set
from smddp_tf._src.job.reduce_op import Average, Product, Sum
from smddp_tf._src.job.reduction import Reduction


def whole_number(name: str, value: Any, least: int) -> int:
    """Validates an integer argument.

    Raises:
      TypeError: value is not an integer; bools are rejected.
      ValueError: value is less than least.
    """
    number = integer(name, value)
    if number < least:
        raise ValueError(f"{name}={number} is not >= {least}")
    return number


def _is_variable(value: Any) -> bool:
    return hasattr(value, "assign") and hasattr(value, "shape")


def _checked_groups(groups: Any) -> list[Any]:
    """Validates `groups` and returns it as a list of lists of variables."""
    problem = (
        f"groups={groups!r} is neither a list of lists of variables, as [[a, b], [c]], nor a "
        "number of groups"
    )
    if isinstance(groups, str) or not hasattr(groups, "__iter__"):
        raise TypeError(problem)
    lists = []
    for group in groups:
        if not isinstance(group, Sequence) or not all(map(_is_variable, group)):
            raise TypeError(problem)
        lists.append(list(group))
    return lists


@dataclasses.dataclass(frozen=True)
class ReduceOptions:
    """How gradients are reduced; the arguments of DistributedGradientTape.

    Raises:
      TypeError: an argument has the wrong type.
      ValueError: an argument is out of range, or arguments contradict each other.
    """

    op: Any = Average  # stored as a ReduceOp
    compression: Any = Compression.none
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    num_groups: int = 0
    groups: Any = None  # lists of variables; a number is stored as num_groups
    name: str = "gradients"
    process_set: ProcessSet = global_process_set
    bucket_bytes: int = 0  # 0: SMDDP_BUCKET_BYTES
    accumulation: str = ""  # how an optimizer adds up passes before it has them reduced, as text

    def __post_init__(self) -> None:
        object.__setattr__(self, "op", resolve_op(None, self.op))
        check_compressor(self.compression)
        self._check_factor()

        num_groups, groups = self.num_groups, self.groups
        if isinstance(groups, numbers.Number):
            groups, num_groups = None, whole_number("groups", groups, 0)
        checked = {
            "bucket_bytes": whole_number("bucket_bytes", self.bucket_bytes, 0),
            "num_groups": whole_number("num_groups", num_groups, 0),
            "groups": None if groups is None else _checked_groups(groups),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

        if self.num_groups and self.groups is not None:
            raise ValueError("give num_groups or groups, not both")

    def _check_factor(self) -> None:
        factor = self.gradient_predivide_factor
        if isinstance(factor, bool) or not isinstance(factor, numbers.Real):
            raise TypeError(f"gradient_predivide_factor={factor!r} is not a number")
        if factor != 1.0 and self.op != Average:
            raise ValueError("gradient_predivide_factor needs op=Average")
        if factor != 1.0 and hasattr(self.compression, "reduce"):
            raise ValueError("gradient_predivide_factor cannot be combined with this compression")
        if factor <= 0:
            raise ValueError(f"gradient_predivide_factor={factor} is not > 0")

    def reduction(self, name: str, group: ProcessGroup) -> Reduction:
        """How gradients are reduced, under this name, over the ranks of the process set."""
        factor = float(self.gradient_predivide_factor)
        return Reduction(self.op, name, group, 1.0 / factor, factor, self.compression)

    def is_idempotent(self) -> bool:
        """Whether reducing what was reduced already does not change it (but for rounding)."""
        return self.op not in (Sum, Product) and not hasattr(self.compression, "reduce")

    def in_plan(self) -> str:
        """The options that the fingerprint of a plan has besides its buckets, as text."""
        factor = float(self.gradient_predivide_factor)
        scales = f"op={self.op} prescale={1.0 / factor} postscale={factor}"
        return " ".join(
            [scales, f"compression={describe(self.compression)}", self.accumulation]
        ).rstrip()

    def description(self) -> dict[str, Any]:
        """The options that must be equal on all ranks, as text: argument -> value."""
        return {
            "op": str(self.op),
            "compression": describe(self.compression),
            "sparse_as_dense": str(bool(self.sparse_as_dense)),
            "gradient_predivide_factor": repr(float(self.gradient_predivide_factor)),
            "num_groups": str(self.num_groups),
            "groups": "None" if self.groups is None else str([len(g) for g in self.groups]),
            "process_set": str(self.process_set.ranks),
            "bucket_bytes": str(self.bucket_bytes),
        }
