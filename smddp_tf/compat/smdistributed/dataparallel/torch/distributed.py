"""smdistributed.dataparallel.torch.distributed, of SMDDP 1, on the backend smddp."""

from torch import distributed
from torch.distributed import (  # noqa: F401
    ReduceOp,
    all_gather,
    all_reduce,
    all_to_all_single,
    barrier,
    broadcast,
    get_backend,
    get_rank,
    get_world_size,
    group,
    is_available,
    is_initialized,
    new_group,
    reduce,
)

import smddp_tf.torch  # noqa: F401 - registers the backend
from smddp_tf._src.job import basics
from smddp_tf.compat._install import refuse_names

reduce_op = ReduceOp

__getattr__ = refuse_names("smdistributed.dataparallel.torch.distributed", {})


def init_process_group(backend="smddp", **options):
    """torch.distributed.init_process_group(), whose backend is smddp by default."""
    distributed.init_process_group(backend, **options)


def get_local_rank():
    """This process's rank on its node."""
    return basics.local_rank()


def get_local_size():
    """The number of ranks on this node."""
    return basics.local_size()
