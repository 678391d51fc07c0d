"""horovod.tensorflow.mpi_ops: queries and collectives below the public ones."""

import smddp_tf
from smddp_tf import *  # noqa: F403
from smddp_tf.compat.horovod.common.util import gpu_available, num_rank_is_power_2  # noqa: F401
from smddp_tf.compat.horovod.tensorflow.util import _executing_eagerly  # noqa: F401

# Scripts ask it for rank() and the like, where Horovod keeps its C library.
_basics = smddp_tf

check_num_rank_power_of_2 = num_rank_is_power_2


def _allreduce(tensor, name=None, op=smddp_tf.Sum, **options):
    """A sum, unless op says otherwise."""
    return smddp_tf.allreduce(tensor, op=op, name=name, **options)


def _grouped_allreduce(tensors, name=None, op=smddp_tf.Sum, **options):
    """Sums, unless op says otherwise."""
    return smddp_tf.grouped_allreduce(tensors, op=op, name=name, **options)


def handle_average_backwards_compatibility(op, average):
    """The op that an old `average` and a new `op` argument mean together."""
    from smddp_tf._collectives.checks import resolve_op

    return resolve_op(average, op)
