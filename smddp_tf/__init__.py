"""Data-parallel training for TensorFlow: fused gradient AllReduce with Horovod's names.

Names that need TensorFlow import it when they are first used.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING

from smddp_tf._compression import Compression
from smddp_tf._reduce_op import Adasum, Average, Max, Min, Product, ReduceOp, Sum
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

if TYPE_CHECKING:  # for editors; a test compares it with the list above
    from smddp_tf._collectives import (
        allgather,
        allreduce,
        barrier,
        broadcast,
        grouped_allreduce,
    )
    from smddp_tf._equality import check_ranks_equal
    from smddp_tf._exchange import (
        alltoall,
        grouped_allgather,
        grouped_reducescatter,
        join,
        reducescatter,
    )
    from smddp_tf._queries import (
        local_rank_op,
        local_size_op,
        process_set_included_op,
        rank_op,
        size_op,
    )
    from smddp_tf._tape import DistributedGradientTape
    from smddp_tf._variables import (
        allgather_object,
        broadcast_,
        broadcast_global_variables,
        broadcast_object,
        broadcast_object_fn,
        broadcast_variables,
    )
    from smddp_tf.keras._sync_batch_norm import SyncBatchNormalization
    from smddp_tf.keras._tf_names import (
        BroadcastGlobalVariablesHook,
        DistributedOptimizer,
        PartialDistributedGradientTape,
    )

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "Sum",
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
    # help() gets what is listed, which fails for names that need a TensorFlow that is not there.
    without = set() if importlib.util.find_spec("tensorflow") else set(_NEED_TENSORFLOW)
    return sorted(set(__all__) - without)
