"""horovod.torch: smddp_tf.torch under its name."""

import smddp_tf.torch
from smddp_tf.compat._install import refuse_names
from smddp_tf.compat.horovod.common.util import check_extension, split_list
from smddp_tf.compat.horovod.torch import compression, functions, mpi_ops, optimizer
from smddp_tf.torch import *  # noqa: F403

__version__ = "0.28.1"

_SEVERAL = "start allreduce_async() for each tensor, or use DistributedOptimizer, which has buckets"

REFUSED = {
    "grouped_allreduce": _SEVERAL,
    "grouped_allreduce_": _SEVERAL,
    "grouped_allreduce_async": _SEVERAL,
    "grouped_allreduce_async_": _SEVERAL,
    "sparse_allreduce_async": "give tensor.to_dense(), or sparse_as_dense=True",
    "alltoall": "torch.distributed.all_to_all_single, on the backend smddp",
    "alltoall_async": "torch.distributed.all_to_all_single, on the backend smddp",
    "reducescatter": "torch.distributed.reduce_scatter_tensor, on the backend smddp",
    "reducescatter_async": "torch.distributed.reduce_scatter_tensor, on the backend smddp",
    "join": "DistributedDataParallel(model).join(), on the backend smddp",
    "SyncBatchNorm": "torch.nn.SyncBatchNorm, with the backend nccl",
    "elastic": "start the script with smddprun --max-restarts N",
    "run": "launch the script with smddprun -np N",
}

__all__ = list(smddp_tf.torch.__all__)

_missing = refuse_names("horovod.torch", REFUSED)


def __getattr__(name):
    # Names outside of __all__, and those that are not provided.
    return _missing(name)
