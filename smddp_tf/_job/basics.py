"""Who and where this rank is, and what the library has; names as of Horovod's basics."""

from __future__ import annotations

import ctypes
import json

from smddp_tf._job import native
from smddp_tf.errors import NotInitializedError


def is_initialized() -> bool:
    """Whether init() was called, and shutdown() not since."""
    return bool(native.core().smddp_is_initialized())


def _query(value: int) -> int:
    if value < 0:
        raise NotInitializedError
    return value


def rank() -> int:
    """This process's number in the job, from 0. ValueError before init(), as all below."""
    return _query(native.core().smddp_rank())


def size() -> int:
    """The number of ranks in the job."""
    return _query(native.core().smddp_size())


def local_rank() -> int:
    """This process's number among the ranks that share memory with it, from 0."""
    return _query(native.core().smddp_local_rank())


def local_size() -> int:
    """The number of ranks that share memory with this one, itself included."""
    return _query(native.core().smddp_local_size())


def cross_rank() -> int:
    """The number of this rank's node, from 0."""
    return _query(native.core().smddp_cross_rank())


def cross_size() -> int:
    """The number of nodes."""
    return _query(native.core().smddp_cross_size())


def is_homogeneous() -> bool:
    """Whether every node has as many ranks."""
    return bool(_query(native.core().smddp_is_homogeneous()))


def stats() -> dict:
    """Counters of this rank: collectives, buckets, their bytes, staging bytes, SIMD level, MPI."""
    buffer = ctypes.create_string_buffer(4096)
    native.core().smddp_stats_json(buffer, len(buffer))
    return json.loads(buffer.value)


# How the library was built, for scripts that ask. MPI and the rest are opened at run time.
def mpi_built() -> bool:
    """MPI can carry bytes between nodes."""
    return True


def mpi_enabled() -> bool:
    """The job was launched by mpirun."""
    return bool(stats().get("mpi", "none") != "none")


def mpi_threads_supported() -> bool:
    """Collectives may be called from any thread."""
    return True


def _never() -> bool:
    """Not part of this library."""
    return False


gloo_built = gloo_enabled = nccl_built = ddl_built = ccl_built = cuda_built = rocm_built = _never
