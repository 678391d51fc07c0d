"""horovod.tensorflow.mpi_ops: queries and collectives below the public ones."""

import smddp_tf
from smddp_tf import *  # noqa: F403


def _allreduce(
    tensor,
    name=None,
    op=smddp_tf.Sum,
    prescale_factor=1.0,
    postscale_factor=1.0,
    ignore_name_scope=False,
    process_set=smddp_tf.global_process_set,
):
    """A sum, unless op says otherwise."""
    return smddp_tf.allreduce(
        tensor,
        op=op,
        name=name,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        ignore_name_scope=ignore_name_scope,
        process_set=process_set,
    )


def _grouped_allreduce(
    tensors,
    name=None,
    op=smddp_tf.Sum,
    prescale_factor=1.0,
    postscale_factor=1.0,
    ignore_name_scope=False,
    process_set=smddp_tf.global_process_set,
):
    """Sums, unless op says otherwise."""
    return smddp_tf.grouped_allreduce(
        tensors,
        op=op,
        name=name,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        ignore_name_scope=ignore_name_scope,
        process_set=process_set,
    )


def handle_average_backwards_compatibility(op, average):
    """The op that an old `average` and a new `op` argument mean together."""
    from smddp_tf._collectives import resolve_op

    return resolve_op(average, op)
