"""Data-parallel training for TensorFlow: fused gradient AllReduce with Horovod's names.

Names that need TensorFlow import it when they are first used.
"""

import importlib

from smddp_tf._compression import Compression
from smddp_tf._runtime import (
    ProcessSet,
    add_process_set,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    stats,
)
from smddp_tf._tracing import start_timeline, stop_timeline
from smddp_tf._version import __version__

_NEED_TENSORFLOW = {
    "Adasum": "_ops",
    "Average": "_ops",
    "Max": "_ops",
    "Min": "_ops",
    "Product": "_ops",
    "Sum": "_ops",
    "allgather": "_collectives",
    "allreduce": "_collectives",
    "barrier": "_collectives",
    "broadcast": "_collectives",
    "grouped_allreduce": "_collectives",
    "alltoall": "_exchange",
    "grouped_allgather": "_exchange",
    "grouped_reducescatter": "_exchange",
    "join": "_exchange",
    "reducescatter": "_exchange",
    "allgather_object": "_variables",
    "broadcast_": "_variables",
    "broadcast_global_variables": "_variables",
    "broadcast_object": "_variables",
    "broadcast_object_fn": "_variables",
    "broadcast_variables": "_variables",
    "local_rank_op": "_queries",
    "local_size_op": "_queries",
    "process_set_included_op": "_queries",
    "rank_op": "_queries",
    "size_op": "_queries",
    "DistributedGradientTape": "_tape",
    "check_ranks_equal": "_equality",
    "BroadcastGlobalVariablesHook": "keras._tf_names",
    "DistributedOptimizer": "keras._tf_names",
    "PartialDistributedGradientTape": "keras._tf_names",
    "SyncBatchNormalization": "keras._sync_batch_norm",
}

__all__ = [
    "Compression",
    "ProcessSet",
    "__version__",
    "add_process_set",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stats",
    "stop_timeline",
    *_NEED_TENSORFLOW,
]


def __getattr__(name: str):
    """Imports what needs TensorFlow at its first use."""
    if name not in _NEED_TENSORFLOW:
        raise AttributeError(f"module 'smddp_tf' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"smddp_tf.{_NEED_TENSORFLOW[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list:
    return sorted(__all__)
