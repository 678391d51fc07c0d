"""How tensors are reduced: one object, built once from a caller's arguments."""

from __future__ import annotations

import dataclasses
from typing import Any

from smddp_tf._src.job.process_sets import ProcessGroup
from smddp_tf._src.job.reduce_op import ReduceOp


@dataclasses.dataclass(frozen=True)
class Reduction:
    """How the tensors of one call are reduced.

    The API's edge checks the arguments and builds it; every layer below hands it on.

    Attributes:
      op: combines the ranks' values.
      name: identifies the operation; ranks compare it.
      group: the ranks that take part.
      prescale: multiplies the inputs.
      postscale: multiplies the results.
      compression: a compressor; None where no layer below compresses.
      compared: what else must be equal on all ranks, as text.
    """

    op: ReduceOp
    name: str
    group: ProcessGroup
    prescale: float = 1.0
    postscale: float = 1.0
    compression: Any = None
    compared: str = ""

    @property
    def scales(self) -> bool:
        """Whether a factor changes the result."""
        return (self.prescale, self.postscale) != (1.0, 1.0)

    def named(self, name: str) -> Reduction:
        """The same reduction under another name."""
        return dataclasses.replace(self, name=name)

    def scaled_by(self, prescale: float = 1.0, postscale: float = 1.0) -> Reduction:
        """The same reduction with other factors; without arguments, with none."""
        return dataclasses.replace(self, prescale=prescale, postscale=postscale)

    def comparing(self, *texts: str) -> Reduction:
        """The same reduction, whose ranks compare these texts too; empty ones add nothing."""
        if not any(texts):  # as in most calls; a copy costs more than all else here
            return self
        return dataclasses.replace(self, compared=" ".join(filter(None, [self.compared, *texts])))
