"""Rank and size queries, statistics and build information, with Horovod's names."""

from __future__ import annotations

import ctypes
import json

from smddp_tf._job import native
from smddp_tf.errors import NotInitializedError


def is_initialized() -> bool:
    """Whether init() has been called, without a shutdown() since."""
    return bool(native.core().smddp_is_initialized())


def _query(value: int) -> int:
    if value < 0:
        raise NotInitializedError
    return value


def rank() -> int:
    """This process's rank in the job, from 0.

    Like the queries below, it raises ValueError before init().
    """
    return _query(native.core().smddp_rank())


def size() -> int:
    """The number of ranks in the job."""
    return _query(native.core().smddp_size())


def local_rank() -> int:
    """This process's rank among the ranks of its node (those that share memory), from 0."""
    return _query(native.core().smddp_local_rank())


def local_size() -> int:
    """The number of ranks on this node (those that share memory), including this one."""
    return _query(native.core().smddp_local_size())


def cross_rank() -> int:
    """The index of this rank's node, from 0."""
    return _query(native.core().smddp_cross_rank())


def cross_size() -> int:
    """The number of nodes."""
    return _query(native.core().smddp_cross_size())


def is_homogeneous() -> bool:
    """Whether every node has the same number of ranks."""
    return bool(_query(native.core().smddp_is_homogeneous()))


def stats() -> dict:
    """This rank's counters: collectives, buckets, bytes, staging bytes; also SIMD level and MPI.

    `staging` says how this rank writes what the ranks of its node read (`writes`: "cached",
    "streaming", past the cache, or "mixed"), and at how many GB/s it reads what each of them, by
    rank, wrote in either way (`read_gbs`; None where it was not measured). `chunk_bytes` is
    the size of a chunk.
    """
    buffer = ctypes.create_string_buffer(4096)
    needed = native.core().smddp_stats_json(buffer, len(buffer))
    while needed >= len(buffer):  # a node of many ranks
        buffer = ctypes.create_string_buffer(2 * needed)
        needed = native.core().smddp_stats_json(buffer, len(buffer))
    return json.loads(buffer.value)


# Horovod's build queries. Nothing is decided at build time here: MPI is loaded at run time.
def mpi_built() -> bool:
    """Whether MPI can be used between nodes: always, since it is loaded at run time."""
    return True


def mpi_enabled() -> bool:
    """Whether the job runs under MPI."""
    return bool(stats().get("mpi", "none") != "none")


def mpi_threads_supported() -> bool:
    """Whether collectives may be called from any thread: always."""
    return True


def _never() -> bool:
    """Always False: this library does not use that backend."""
    return False


def nccl_built(verbose: bool = False) -> bool:
    """Whether NCCL can be opened in this process; it reduces tensors on GPUs."""
    del verbose
    return not native.nccl().startswith("none")


gloo_built = gloo_enabled = ddl_built = ccl_built = cuda_built = rocm_built = _never
