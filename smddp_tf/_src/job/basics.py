"""Rank and size queries, statistics and build information, with Horovod's names."""

from __future__ import annotations

import ctypes
import json
from typing import Any

from smddp_tf._src.job import native
from smddp_tf.errors import NotInitializedError


def is_initialized() -> bool:
    """Whether init() has been called, without a shutdown() since.

    Examples:
      >>> hvd.is_initialized()
      True
    """
    return bool(native.core().smddp_is_initialized())


# The (rank, size) of a process that has come to an elastic job and waits to be let in.
_expected: tuple[int, int] | None = None


def expect(rank: int | None, size: int = 0) -> None:
    """Has rank() and size() tell what this process will be; None: what it is."""
    global _expected
    _expected = None if rank is None else (rank, size)


def is_expecting() -> bool:
    """Whether rank() and size() tell what this process will be."""
    return _expected is not None


def _query(value: int, expected: int | None = None) -> int:
    if value < 0:
        raise NotInitializedError
    return value if expected is None else expected


def _expected_rank() -> int | None:
    return None if _expected is None else _expected[0]


def _expected_size() -> int | None:
    return None if _expected is None else _expected[1]


def connected() -> tuple[int, int]:
    """The rank and the number of ranks that this process is connected to, expected ones aside."""
    return _query(native.core().smddp_rank()), _query(native.core().smddp_size())


def rank() -> int:
    """This process's rank in the job, from 0.

    Like the queries below, it raises ValueError before init().

    Examples:
      >>> if hvd.rank() == 0:
      ...     print("once, whatever the number of ranks")
      once, whatever the number of ranks
    """
    return _query(native.core().smddp_rank(), _expected_rank())


def size() -> int:
    """The number of ranks in the job.

    Examples:
      >>> rate = 0.01 * hvd.size()  # the batch of all ranks is size() times as large
    """
    return _query(native.core().smddp_size(), _expected_size())


def local_rank() -> int:
    """This process's rank among the ranks of its node (those that share memory), from 0.

    Examples:
      >>> 0 <= hvd.local_rank() < hvd.local_size()
      True
    """
    return _query(native.core().smddp_local_rank(), _expected_rank())


def local_size() -> int:
    """The number of ranks on this node (those that share memory), including this one.

    Examples:
      >>> hvd.local_size() <= hvd.size()
      True
    """
    return _query(native.core().smddp_local_size(), _expected_size())


def cross_rank() -> int:
    """The index of this rank's node, from 0.

    Examples:
      >>> 0 <= hvd.cross_rank() < hvd.cross_size()
      True
    """
    return _query(native.core().smddp_cross_rank())


def cross_size() -> int:
    """The number of nodes.

    Examples:
      >>> hvd.cross_size()  # one machine
      1
    """
    return _query(native.core().smddp_cross_size())


def is_homogeneous() -> bool:
    """Whether every node has the same number of ranks.

    Examples:
      >>> hvd.is_homogeneous()
      True
    """
    return bool(_query(native.core().smddp_is_homogeneous()))


def is_broken() -> bool:
    """Whether a collective of the job has failed, so that all others of it fail."""
    return bool(_query(native.core().smddp_is_broken()))


def is_last_job() -> bool:
    """Whether no job of other ranks can follow this one in this process.

    MPI begins once in a process. If a script or mpi4py began it, shutdown() leaves it running, and
    init() may connect other ranks. So it may in an elastic job, which has no MPI.
    """
    return bool(_query(native.core().smddp_is_last_job()))


def stats() -> dict[str, Any]:
    """This rank's counters: collectives, buckets, bytes, staging bytes; also SIMD level and MPI.

    `staging` says how this rank writes what the ranks of its node read (`writes`: "cached",
    "streaming", past the cache, or "mixed"), and at how many GB/s it reads what each of them, by
    rank, wrote in either way (`read_gbs`; None where it was not measured). `chunk_bytes` is
    the size of a chunk.

    Examples:
      >>> counters = hvd.stats()
      >>> counters["collectives"] >= 0 and counters["staging_bytes"] >= 0
      True
    """
    buffer = ctypes.create_string_buffer(4096)
    needed = native.core().smddp_stats_json(buffer, len(buffer))
    while needed >= len(buffer):  # a node of many ranks
        buffer = ctypes.create_string_buffer(2 * needed)
        needed = native.core().smddp_stats_json(buffer, len(buffer))
    return json.loads(buffer.value)


# Horovod's build queries. Nothing is decided at build time here: MPI is loaded at run time.
def mpi_built() -> bool:
    """Whether MPI can be used between nodes: always, since it is loaded at run time.

    Examples:
      >>> hvd.mpi_built()
      True
    """
    return True


def mpi_enabled() -> bool:
    """Whether the job runs under MPI.

    Examples:
      >>> how = "mpirun" if hvd.mpi_enabled() else "one process"
    """
    return bool(stats().get("mpi", "none") != "none")


def mpi_threads_supported() -> bool:
    """Whether collectives may be called from any thread: always.

    Examples:
      >>> hvd.mpi_threads_supported()
      True
    """
    return True


def _never() -> bool:
    """Always False: this library does not use that backend.

    Examples:
      >>> hvd.gloo_built()
      False
    """
    return False


def nccl_built(verbose: bool = False) -> bool:
    """Whether NCCL can be opened in this process; it reduces tensors on GPUs.

    Examples:
      >>> carrier = "NCCL" if hvd.nccl_built() else "the host"
    """
    del verbose
    return not native.nccl().startswith("none")


gloo_built = gloo_enabled = ddl_built = ccl_built = cuda_built = rocm_built = _never
