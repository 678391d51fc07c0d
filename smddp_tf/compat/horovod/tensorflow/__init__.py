"""horovod.tensorflow: smddp_tf under its name."""

# It replaces one of the names that it takes from there.
# mypy: disable-error-code="no-redef"

import smddp_tf
from smddp_tf import *  # noqa: F403
from smddp_tf.compat._install import refuse_names
from smddp_tf.compat.horovod.common.util import split_list
from smddp_tf.compat.horovod.runner import run
from smddp_tf.compat.horovod.tensorflow import (
    compression,
    functions,
    mpi_ops,
    sync_batch_norm,
    util,
)
from smddp_tf.compat.horovod.tensorflow.mpi_ops import (
    _allreduce,
    _basics,
    _grouped_allreduce,
    _grouped_reducescatter,
    _reducescatter,
    check_num_rank_power_of_2,
    gpu_available,
    handle_average_backwards_compatibility,
)
from smddp_tf.compat.horovod.tensorflow.util import (
    _cache,
    _executing_eagerly,
    _make_subgraph,
    refs_to_vars,
    says_horovod,
    vars_to_refs,
)

__version__ = "0.28.1"

REFUSED = {
    "data": "use tf.data in each rank, or tf.data's own service",
    "LocalGradientAggregationHelper": "pass backward_passes_per_step to DistributedOptimizer",
}

__all__ = list(smddp_tf.__all__)

DistributedOptimizer = says_horovod(smddp_tf.DistributedOptimizer)

_missing = refuse_names("horovod.tensorflow", REFUSED)


def __getattr__(name):
    # Names outside of __all__, and those that are not provided.
    return _missing(name)
