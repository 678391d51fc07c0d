"""Data-parallel Keras training: ``import smddp_tf.keras as hvd`` and three changed lines.

Works with Keras 3, tf_keras and Keras 2, whichever TensorFlow uses. See docs/keras.md. It has the
names of smddp_tf too, as Horovod's Keras module.
"""

# ruff: noqa: E402 - what follows derives from Keras's classes, so it is checked first
from smddp_tf.keras._backend import require_tensorflow

require_tensorflow()

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
from smddp_tf._src.compression import Compression
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
from smddp_tf._src.state.variables import broadcast_, broadcast_variables
from smddp_tf._version import __version__
from smddp_tf.keras import callbacks, elastic
from smddp_tf.keras._adapt import adapt
from smddp_tf.keras._batch_norm import average_batch_normalization
from smddp_tf.keras._evaluate import evaluate, predict
from smddp_tf.keras._horovod_tf import BroadcastGlobalVariablesHook, PartialDistributedGradientTape
from smddp_tf.keras._load import load_model
from smddp_tf.keras._optimizer import DistributedOptimizer, PartialDistributedOptimizer
from smddp_tf.keras._seeds import set_random_seed
from smddp_tf.keras._shard import shard
from smddp_tf.keras._sync_batch_norm import SyncBatchNormalization
from smddp_tf.keras._whole_state import whole_state
from smddp_tf.launch.function.run import run

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
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "Sum",
    "SyncBatchNormalization",
    "__version__",
    "adapt",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "average_batch_normalization",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "check_ranks_equal",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "evaluate",
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
    "load_model",
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
    "predict",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "run",
    "set_random_seed",
    "shard",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stats",
    "stop_timeline",
    "whole_state",
]
