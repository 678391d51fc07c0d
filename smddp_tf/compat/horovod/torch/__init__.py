"""horovod.torch: smddp_tf.torch under its name."""

import smddp_tf.torch
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

__all__ = list(smddp_tf.torch.__all__)
