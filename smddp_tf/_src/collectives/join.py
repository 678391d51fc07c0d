"""Join: lets a rank that ran out of data take part in the others' collectives."""

from __future__ import annotations

from smddp_tf._src.graph import ops
from smddp_tf._src.job import basics
from smddp_tf._src.types import Tensor


def join() -> Tensor:
    """Blocks until all ranks have called it; meanwhile takes part in the others' collectives.

    For ranks that ran out of data. A joined rank contributes zeros to allreduces and gradient
    reductions (an average still divides by all ranks) and takes part in barriers. Within one node
    it also takes part in broadcasts from other ranks, and in allgathers, with no rows (except
    inside jit_compile=True, where all ranks must have the same number). Collectives that cannot be
    served like this (Min, Max, Product, alltoall, reducescatter, a broadcast from this rank) fail
    on all ranks with FailedPreconditionError.

    A joined rank applies no updates, so its variables are stale afterwards: broadcast them from
    the returned rank.

    Returns:
      The last rank to call join() (between nodes, by their clocks): an int32 scalar, the same on
      all ranks.

    Raises:
      ValueError: init() was not called.
      tf.errors.UnknownError: a rank exited without calling it.

    Examples:
      >>> for batch in [[1.0], [2.0]]:  # another rank may have more
      ...     _ = hvd.allreduce(batch, op=hvd.Sum)
      >>> int(hvd.join())  # the rank that came last
      0
    """
    basics.size()
    return ops.join()
