"""horovod.tensorflow.keras: smddp_tf.keras under its name."""

# It replaces some of the names that it takes from there.
# mypy: disable-error-code="no-redef"

import numpy as np

import smddp_tf
import smddp_tf.compat.horovod.tensorflow.keras.callbacks
import smddp_tf.keras
from smddp_tf.compat.horovod.tensorflow.util import says_horovod
from smddp_tf.keras import *  # noqa: F403

__all__ = list(smddp_tf.keras.__all__)

DistributedOptimizer = says_horovod(smddp_tf.keras.DistributedOptimizer)
load_model = says_horovod(
    smddp_tf.keras.load_model, lambda model: getattr(model, "optimizer", None)
)


def broadcast_global_variables(root_rank):
    """Same as smddp_tf.broadcast_global_variables()."""
    return smddp_tf.broadcast_global_variables(root_rank)


def allreduce(
    value,
    name=None,
    average=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    op=None,
    compression=smddp_tf.Compression.none,
):
    """smddp_tf.allreduce() with this module's argument order."""
    return smddp_tf.allreduce(
        value,
        average=average,
        op=op,
        name=name,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        compression=compression,
    )


def allgather(value, name=None):
    """smddp_tf.allgather()."""
    return smddp_tf.allgather(value, name=name)


def broadcast(value, root_rank, name=None):
    """smddp_tf.broadcast(); a Python int as int64, which fit() of Keras 2 takes as an epoch."""
    if type(value) is int:
        value = np.int64(value)
    return smddp_tf.broadcast(value, root_rank, name=name)


def reducescatter(value, name=None, op=smddp_tf.Average):
    """smddp_tf.reducescatter()."""
    return smddp_tf.reducescatter(value, op=op, name=name)
