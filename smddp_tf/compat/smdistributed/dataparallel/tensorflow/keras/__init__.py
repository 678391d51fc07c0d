"""smdistributed.dataparallel.tensorflow.keras."""

from smddp_tf.compat.smdistributed.dataparallel.tensorflow import *  # noqa: F403
from smddp_tf.compat.smdistributed.dataparallel.tensorflow import (  # noqa: F401
    DistributedOptimizer,
    init,
    local_rank,
    rank,
    size,
)
from smddp_tf.compat.smdistributed.dataparallel.tensorflow.keras import callbacks  # noqa: F401
