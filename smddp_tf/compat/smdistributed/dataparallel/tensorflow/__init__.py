"""smdistributed.dataparallel.tensorflow: smddp_tf under SageMaker's names."""

import numbers

import tensorflow as tf

import smddp_tf
from smddp_tf import (  # noqa: F401
    BroadcastGlobalVariablesHook,
    Compression,
    broadcast,
    broadcast_global_variables,
    broadcast_variables,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from smddp_tf.compat._install import refuse_names
from smddp_tf.compat.smdistributed.dataparallel.exceptions import SMDDPError, SMDDPInitError
from smddp_tf.keras import _optimizer

__getattr__ = refuse_names("smdistributed.dataparallel.tensorflow", {})


class ReduceOp:
    """Reduce operations."""

    AVERAGE = smddp_tf.Average
    SUM = smddp_tf.Sum
    MIN = smddp_tf.Min
    MAX = smddp_tf.Max


def init():
    """Joins the job; may be called only once.

    Raises:
      SMDDPInitError: init() was called before.
    """
    if is_initialized():
        raise SMDDPInitError(
            "init() called more than once. smdistributed.dataparallel is already initialized."
        )
    smddp_tf.init()


def allreduce(
    tensor=None,
    param_index=None,
    num_params=None,
    compression=Compression.none,
    op=ReduceOp.AVERAGE,
    grad=None,
):
    """Reduces a gradient.

    Args:
      tensor: the gradient; may also be passed as grad.
      param_index: its index in the list of gradients, the same on all ranks.
      num_params: the length of that list.
      compression: same as for smddp_tf.allreduce().
      op: a ReduceOp; None means AVERAGE.
      grad: another name for tensor.

    Returns:
      The reduced gradient.

    Raises:
      ValueError: not exactly one of tensor and grad is given, param_index or num_params is missing,
        or param_index is out of range.
    """
    if (tensor is None) == (grad is None):
        raise ValueError("allreduce takes the gradient as tensor= or as grad=, one of them")
    if param_index is None or num_params is None:
        raise ValueError(
            "allreduce takes param_index= and num_params=; for other tensors than "
            "gradients use oob_allreduce"
        )
    if not 0 <= param_index < num_params:
        raise ValueError(f"param_index={param_index} is not from 0 to {num_params - 1}")
    return smddp_tf.allreduce(
        grad if tensor is None else tensor,
        op=ReduceOp.AVERAGE if op is None else op,
        compression=compression,
        name=f"gradient {param_index} of {num_params}",
    )


def oob_allreduce(tensor, compression=Compression.none, op=ReduceOp.AVERAGE):
    """Reduces values other than gradients: a tensor, a number, or a list or tuple of them.

    Python floats become float32 tensors. Returns the results in the structure of the input.
    """
    if isinstance(tensor, (list, tuple)):
        return type(tensor)(oob_allreduce(one, compression, op) for one in tensor)
    if isinstance(tensor, numbers.Number) and not isinstance(tensor, numbers.Integral):
        tensor = tf.constant(tensor, tf.float32)
    op = ReduceOp.AVERAGE if op is None else op
    return smddp_tf.allreduce(tensor, op=op, compression=compression, name="oob_allreduce")


def overlap(tensor):
    """Returns the tensor: reductions overlap the backward pass without marking the graph."""
    return tf.identity(tensor)


def DistributedGradientTape(  # noqa: N802 - its name
    gradtape,
    device_dense="",
    device_sparse="",
    compression=Compression.none,
    sparse_as_dense=True,
    op=ReduceOp.AVERAGE,
):
    """smddp_tf.DistributedGradientTape, with sparse_as_dense=True by default.

    Raises:
      NotImplementedError: device_dense or device_sparse is given.
    """
    if device_dense or device_sparse:
        raise NotImplementedError("device_dense and device_sparse are not supported; leave them")
    return smddp_tf.DistributedGradientTape(
        gradtape, compression=compression, sparse_as_dense=sparse_as_dense, op=op
    )


def DistributedOptimizer(  # noqa: N802 - its name
    optimizer,
    name=None,
    use_locking=False,
    device_dense="",
    device_sparse="",
    compression=Compression.none,
    sparse_as_dense=True,
    op=ReduceOp.AVERAGE,
    bucket_cap_mb=25,
):
    """smddp_tf.keras.DistributedOptimizer, with gradient buckets of bucket_cap_mb MiB.

    Raises:
      ValueError: bucket_cap_mb is not positive, or not a multiple of 128 bytes.
    """
    del use_locking, device_dense, device_sparse
    cap = bucket_cap_mb * 1024 * 1024
    if cap <= 0 or cap % 128:
        raise ValueError(f"bucket_cap_mb={bucket_cap_mb} is not a positive multiple of 128 bytes")
    return _optimizer.DistributedOptimizer(
        optimizer,
        name,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        bucket_bytes=int(cap),
    )


def get_worker_comm():
    """Returns the mpi4py communicator of all ranks.

    Raises:
      SMDDPError: mpi4py is not installed.
    """
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise SMDDPError(
            "get_worker_comm() gives an mpi4py communicator, and mpi4py is not installed; install "
            "it, or use smddp_tf.allgather_object()"
        ) from error
    return MPI.COMM_WORLD
