"""What ranks must agree on where some gradients stay local: whether to skip a step, and norms.

An optimizer decides both from all gradients that it gets. Those of local variables are different on
each rank, so without this each rank would skip other steps, or clip the shared gradients by a
factor of its own, and the shared weights would drift apart.
"""

from smddp_tf._src.collectives.allreduce import allreduce
from smddp_tf._src.gradients.reduce import identity
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job.reduce_op import Min, Sum

tf = tensorflow()


def _values(grad):
    return grad.values if isinstance(grad, tf.IndexedSlices) else grad


def sync_overflow(grads, variables, local: set, process_set) -> list:
    """Makes local gradients NaN on all ranks if one of them is not finite on one rank.

    A loss scale then skips the step, and shrinks, on all ranks.

    Args:
      grads: gradients; None for variables without one.
      variables: their variables.
      local: identity() of the variables whose gradients stay local.
      process_set: the ranks that agree.
    """
    results = list(grads)
    at = [
        i
        for i, (grad, variable) in enumerate(zip(grads, variables, strict=True))
        if grad is not None and identity(variable) in local
    ]
    if not at:
        return results
    finite = [tf.reduce_all(tf.math.is_finite(_values(results[i]))) for i in at]
    agreed = tf.cast(
        allreduce(
            tf.cast(tf.reduce_all(tf.stack(finite)), tf.int32),
            op=Min,
            name="local gradients finite",
            process_set=process_set,
        ),
        tf.bool,
    )
    for i in at:
        values = _values(results[i])
        values = tf.where(
            agreed, values, tf.fill(tf.shape(values), values.dtype.as_numpy_dtype("nan"))
        )
        if isinstance(results[i], tf.IndexedSlices):
            values = tf.IndexedSlices(values, results[i].indices, results[i].dense_shape)
        results[i] = values
    return results


def clip_by_global_norm(grads, variables, limit: float, local: set, process_set) -> list:
    """Clips by the norm of the shared gradients and those of all ranks' local variables together.

    That is the norm in a single process with all the local variables, and one number on all ranks.
    """
    owned = [identity(variable) in local for variable in variables]
    shared = [grad for grad, own in zip(grads, owned, strict=True) if not own and grad is not None]
    own = [grad for grad, own in zip(grads, owned, strict=True) if own and grad is not None]
    squares = allreduce(
        tf.square(tf.cast(tf.linalg.global_norm(own), tf.float32)) if own else tf.constant(0.0),
        op=Sum,
        name="norm of local gradients",
        process_set=process_set,
    )
    if shared:
        squares += tf.square(tf.cast(tf.linalg.global_norm(shared), tf.float32))
    return tf.clip_by_global_norm(list(grads), limit, use_norm=tf.sqrt(squares))[0]
