"""horovod.keras: the same as horovod.tensorflow.keras."""

from smddp_tf.compat.horovod.keras import callbacks  # noqa: F401
from smddp_tf.compat.horovod.tensorflow.keras import *  # noqa: F403
from smddp_tf.compat.horovod.tensorflow.keras import (  # noqa: F401
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    reducescatter,
)
