"""Join: a rank that ran out of data serves the others' collectives."""

from __future__ import annotations

from smddp_tf._graph import ops
from smddp_tf._job import basics


def join():
    """Waits until all ranks have called it, and serves the others' collectives meanwhile.

    For ranks that ran out of data: they take part in allreduces and gradient reductions with zeros
    (an average still divides by all ranks) and in barriers; inside one node also in broadcasts from
    other ranks, and in allgathers with no rows (not inside jit_compile=True, where all ranks have
    as many). Collectives for which that would not do (Min, Max, Product, alltoall, reducescatter,
    a broadcast from this rank) fail on all ranks with FailedPreconditionError.

    A rank that waits here makes no updates, so afterwards its variables are behind: broadcast them
    from the rank that is returned.

    Returns:
      The rank that was the last to call it (between nodes by their clocks), the same on all ranks:
      an int32 scalar.

    Raises:
      ValueError: before init().
      tf.errors.UnknownError: a rank ended without having called it.
    """
    basics.size()
    return ops.join()
