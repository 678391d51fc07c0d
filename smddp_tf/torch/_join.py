"""Horovod's join(): lets a rank that ran out of data take part in the others' collectives."""

from __future__ import annotations

import collections
import ctypes

from torch.distributed import DistBackendError

from smddp_tf._src.job import basics, native
from smddp_tf._src.job.enums import Code
from smddp_tf.torch import _collectives, _names, _steps


def join(device: int = -1) -> int:
    """Blocks until all ranks have called it; meanwhile takes part in the others' collectives.

    For ranks that ran out of data. First this rank's own collectives end. Then it contributes
    zeros to the sums, averages and dense gradients of the others; an average still divides by all
    ranks. It takes part in barriers and, within one node, in broadcasts from other ranks. All else
    fails on all ranks: Min, Max, Product, allgather, alltoall, reducescatter, sparse gradients, and
    a broadcast from this rank.

    A joined rank updates no weights, so they are stale afterwards: broadcast them from the rank
    that is returned. `DistributedDataParallel` has a `join()` of its own.

    Args:
      device: accepted for Horovod's sake.

    Returns:
      The last rank to call it (between nodes, by their clocks), the same on all ranks.

    Raises:
      ValueError: init() was not called.
      torch.distributed.DistBackendError: a rank died, or ended without calling it.

    Examples:
      >>> for batch in [1.0, 2.0]:  # another rank may have more
      ...     _ = hvd.allreduce(torch.tensor(batch), op=hvd.Sum)
      >>> hvd.join() < hvd.size()  # the rank that came last
      True
    """
    del device
    basics.size()
    _steps.wait_for_all()
    last = ctypes.c_int(-1)
    if native.core().smddp_join(ctypes.byref(last)) != Code.OK:
        raise DistBackendError(f"smddp: {native.last_error()} (join)")
    _agree_on_names()
    return last.value


def _agree_on_names() -> None:
    """Collectives without a name are known by their number, and ranks have made different ones."""
    most: _names.Unnamed = collections.Counter()
    for counts in _collectives.allgather_object(_names.count(), name="join"):
        most |= counts
    _names.count_from(most)
