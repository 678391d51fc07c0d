"""Data-parallel training for TensorFlow: fused gradient AllReduce with Horovod's names.

Importing this package does not import TensorFlow: names that need it are loaded on first use.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from smddp_tf._src.compression import Compression
from smddp_tf._src.job.adding_sets import add_process_set, remove_process_set
from smddp_tf._src.job.basics import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    size,
    stats,
)
from smddp_tf._src.job.job import init, shutdown
from smddp_tf._src.job.process_sets import ProcessSet, global_process_set
from smddp_tf._src.job.reduce_op import Adasum, Average, Max, Min, Product, ReduceOp, Sum
from smddp_tf._src.job.tracing import start_timeline, stop_timeline
from smddp_tf._version import __version__

_NEED_TENSORFLOW = {
    "allgather": "_src.collectives.allgather",
    "allreduce": "_src.collectives.allreduce",
    "barrier": "_src.collectives.barrier",
    "broadcast": "_src.collectives.broadcast",
    "grouped_allreduce": "_src.collectives.allreduce",
    "alltoall": "_src.collectives.alltoall",
    "grouped_allgather": "_src.collectives.allgather",
    "grouped_reducescatter": "_src.collectives.reducescatter",
    "join": "_src.collectives.join",
    "reducescatter": "_src.collectives.reducescatter",
    "allgather_object": "_src.collectives.objects",
    "broadcast_": "_src.state.variables",
    "broadcast_global_variables": "_src.collectives.variables",
    "broadcast_object": "_src.collectives.objects",
    "broadcast_object_fn": "_src.collectives.objects",
    "broadcast_variables": "_src.state.variables",
    "once_per_node": "_src.collectives.once_per_node",
    "local_rank_op": "_src.graph.queries",
    "local_size_op": "_src.graph.queries",
    "pin_gpu": "_src.graph.gpu",
    "process_set_included_op": "_src.graph.queries",
    "rank_op": "_src.graph.queries",
    "size_op": "_src.graph.queries",
    "DistributedGradientTape": "_src.gradients.tape",
    "check_ranks_equal": "_src.gradients.equality",
    "BroadcastGlobalVariablesHook": "keras._horovod_tf",
    "DistributedOptimizer": "keras._horovod_tf",
    "PartialDistributedGradientTape": "keras._horovod_tf",
    "SyncBatchNormalization": "keras._sync_batch_norm",
    "set_random_seed": "keras._seeds",
    "elastic": "smddp_tf",  # a module itself
}

# What else is loaded on first use: the launcher takes longer than the rest of the package.
_LATER = {"run": "launch.function.run"}

# Horovod's modules inside horovod.tensorflow that scripts reach as attributes.
_MODULES = ("compression", "mpi_ops")

if TYPE_CHECKING:  # for editors; a test keeps this in sync with the tables above
    from smddp_tf import elastic
    from smddp_tf._src.collectives.allgather import allgather, grouped_allgather
    from smddp_tf._src.collectives.allreduce import allreduce, grouped_allreduce
    from smddp_tf._src.collectives.alltoall import alltoall
    from smddp_tf._src.collectives.barrier import barrier
    from smddp_tf._src.collectives.broadcast import broadcast
    from smddp_tf._src.collectives.join import join
    from smddp_tf._src.collectives.objects import (
        allgather_object,
        broadcast_object,
        broadcast_object_fn,
    )
    from smddp_tf._src.collectives.once_per_node import once_per_node
    from smddp_tf._src.collectives.reducescatter import grouped_reducescatter, reducescatter
    from smddp_tf._src.collectives.variables import broadcast_global_variables
    from smddp_tf._src.gradients.equality import check_ranks_equal
    from smddp_tf._src.gradients.tape import DistributedGradientTape
    from smddp_tf._src.graph.gpu import pin_gpu
    from smddp_tf._src.graph.queries import (
        local_rank_op,
        local_size_op,
        process_set_included_op,
        rank_op,
        size_op,
    )
    from smddp_tf._src.state.variables import broadcast_, broadcast_variables
    from smddp_tf.keras._horovod_tf import (
        BroadcastGlobalVariablesHook,
        DistributedOptimizer,
        PartialDistributedGradientTape,
    )
    from smddp_tf.keras._seeds import set_random_seed
    from smddp_tf.keras._sync_batch_norm import SyncBatchNormalization
    from smddp_tf.launch.function.run import run

# Written out, since editors and type checkers read it and compute nothing.
__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "Sum",
    "SyncBatchNormalization",
    "__version__",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "check_ranks_equal",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "once_per_node",
    "pin_gpu",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "run",
    "set_random_seed",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stats",
    "stop_timeline",
]


if not TYPE_CHECKING:  # or type checkers would take any name for one of ours

    def __getattr__(name: str) -> Any:
        """Loads names on first use."""
        if name in _MODULES:
            return importlib.import_module(f"smddp_tf.{name}")
        where = _NEED_TENSORFLOW.get(name) or _LATER.get(name)
        if not where:
            raise AttributeError(f"module 'smddp_tf' has no attribute {name!r}")
        if where == "smddp_tf":
            value = importlib.import_module(f"smddp_tf.{name}")
        else:
            value = getattr(importlib.import_module(f"smddp_tf.{where}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    # help() loads every listed name, so hide those that need TensorFlow if it is not installed.
    without = set() if importlib.util.find_spec("tensorflow") else set(_NEED_TENSORFLOW)
    return sorted(set(__all__) - without)
