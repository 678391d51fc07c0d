"""horovod.tensorflow.mpi_ops: the queries and collectives behind the public ones."""

import smddp_tf
from smddp_tf import *  # noqa: F403
from smddp_tf.compat.horovod.common.util import gpu_available, num_rank_is_power_2  # noqa: F401
from smddp_tf.compat.horovod.tensorflow.util import _executing_eagerly  # noqa: F401

# Scripts call rank() and the like on Horovod's wrapper of its C library.
_basics = smddp_tf

check_num_rank_power_of_2 = num_rank_is_power_2


def _allreduce(tensor, name=None, op=smddp_tf.Sum, **options):
    """Allreduce with op=Sum by default."""
    return smddp_tf.allreduce(tensor, op=op, name=name, **options)


def _grouped_allreduce(tensors, name=None, op=smddp_tf.Sum, **options):
    """Grouped allreduce with op=Sum by default."""
    return smddp_tf.grouped_allreduce(tensors, op=op, name=name, **options)


def _reducescatter(tensor, name=None, op=smddp_tf.Sum, **options):
    """Reducescatter with op=Sum by default."""
    return smddp_tf.reducescatter(tensor, op=op, name=name, **options)


def _grouped_reducescatter(tensors, name=None, op=smddp_tf.Sum, **options):
    """Grouped reducescatter with op=Sum by default."""
    return smddp_tf.grouped_reducescatter(tensors, op=op, name=name, **options)


def handle_average_backwards_compatibility(op, average):
    """Resolves Horovod's old `average` and new `op` argument to a ReduceOp."""
    from smddp_tf._src.collectives.checks import resolve_op

    return resolve_op(average, op)
