"""The collectives of a state, by PyTorch."""

from __future__ import annotations

from typing import Any

import torch

from smddp_tf._src.job.reduce_op import Max
from smddp_tf.torch import _collectives, _names, _optimizer


class TorchRanks:
    """See smddp_tf._src.elastic.ranks.Ranks."""

    def any(self, own: bool, name: str) -> bool:
        """Whether it is true on any rank."""
        return bool(_collectives.allreduce(torch.tensor(int(own)), op=Max, name=name))

    def allgather_object(self, obj: Any, name: str) -> list[Any]:
        """The objects of all ranks, in their order."""
        return _collectives.allgather_object(obj, name)

    def broadcast_object(self, obj: Any, root: int, name: str) -> Any:
        """The object of the rank `root`."""
        return _collectives.broadcast_object(obj, root, name)

    def barrier(self) -> None:
        """Waits for all ranks."""
        _collectives.barrier()

    def count(self) -> Any:
        """How many collectives without a name, and optimizers, there were."""
        return _names.count(), _optimizer.count()

    def count_from(self, count: Any) -> None:
        """Numbers go on from count()'s result; gradients of a step that failed are dropped."""
        unnamed, optimizers = count
        _names.count_from(unnamed)
        _optimizer.begin_again(optimizers)
