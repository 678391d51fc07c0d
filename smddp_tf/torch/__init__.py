"""PyTorch on the same core.

Importing this package registers the backend "smddp" with torch.distributed. It also sets RANK,
WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT where the launcher has not;
under plain mpirun it therefore waits for the other ranks. TensorFlow need not be installed.

It also has the names of horovod.torch, for scripts that use these instead of torch.distributed.

Examples:
  >>> import torch, torch.distributed as dist
  >>> import smddp_tf.torch
  >>> dist.init_process_group("smddp")
  >>> ones = torch.ones(3)
  >>> dist.all_reduce(ones)
  >>> ones.tolist() == 3 * [dist.get_world_size()]
  True
"""

from torch.distributed import DistBackendError as HorovodInternalError

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
)
from smddp_tf._src.job.job import init, shutdown
from smddp_tf._src.job.process_sets import ProcessSet, global_process_set
from smddp_tf._src.job.reduce_op import Adasum, Average, Max, Min, Product, ReduceOp, Sum
from smddp_tf._src.job.tracing import start_timeline, stop_timeline
from smddp_tf.torch import _backend, _environment, elastic
from smddp_tf.torch._collectives import (
    allgather,
    allgather_async,
    allgather_object,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    broadcast_object,
    poll,
    synchronize,
)
from smddp_tf.torch._compression import Compression
from smddp_tf.torch._exchange import alltoall, alltoall_async, reducescatter, reducescatter_async
from smddp_tf.torch._grouped import (
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
)
from smddp_tf.torch._join import join
from smddp_tf.torch._optimizer import DistributedOptimizer
from smddp_tf.torch._sparse import sparse_allreduce_async
from smddp_tf.torch._state import broadcast_optimizer_state, broadcast_parameters
from smddp_tf.torch._sync_batch_norm import SyncBatchNorm

_backend.register()
_environment.adopt_ranks()
_environment.agree_on_master()

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]
