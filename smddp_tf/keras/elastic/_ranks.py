"""The collectives of a state, by TensorFlow."""

from __future__ import annotations

from typing import Any

from smddp_tf._src.collectives import barrier, objects
from smddp_tf._src.collectives.allreduce import allreduce
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job.reduce_op import Max

tf = tensorflow()


class TensorFlowRanks:
    """See smddp_tf._src.elastic.ranks.Ranks."""

    def any(self, own: bool, name: str) -> bool:
        """Whether it is true on any rank."""
        return bool(int(allreduce(tf.constant(int(own)), op=Max, name=name)))

    def allgather_object(self, obj: Any, name: str) -> list[Any]:
        """The objects of all ranks, in their order."""
        return objects.allgather_object(obj, name=name)

    def broadcast_object(self, obj: Any, root: int, name: str) -> Any:
        """The object of the rank `root`."""
        return objects.broadcast_object(obj, root, name=name)

    def barrier(self) -> None:
        """Waits for all ranks."""
        barrier.barrier()

    def count(self) -> None:
        """Nothing: unnamed collectives are known by their order, which begins with each job."""

    def count_from(self, count: None) -> None:
        """Does nothing."""
