"""horovod.torch: smddp_tf.torch under its name."""

import smddp_tf.torch
from smddp_tf.compat._install import refuse_names
from smddp_tf.compat.horovod.common.util import check_extension, split_list
from smddp_tf.compat.horovod.runner import run
from smddp_tf.compat.horovod.torch import (
    compression,
    functions,
    mpi_ops,
    optimizer,
    sync_batch_norm,
)
from smddp_tf.torch import *  # noqa: F403

__version__ = "0.28.1"

REFUSED = {
    "join": "DistributedDataParallel(model).join(), on the backend smddp",
}

__all__ = list(smddp_tf.torch.__all__)

_missing = refuse_names("horovod.torch", REFUSED)


def __getattr__(name):
    # Names outside of __all__, and those that are not provided.
    return _missing(name)
