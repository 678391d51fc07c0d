"""Marks gradients that a tape or compute_gradients() reduced, so that no optimizer does so again.

A script may wrap both the tape and the optimizer. Horovod's Keras optimizers reduce nothing in
apply_gradients(), so there each gradient is reduced once.
"""

from smddp_tf._graph.framework import tensorflow

tf = tensorflow()

_ATTRIBUTE = "_smddp_reduced_over"  # the number of a process set


def _own(grad):
    """The gradient as an object of its own: a local one may be what the script holds elsewhere."""
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(grad.values, grad.indices, grad.dense_shape)
    return tf.identity(grad)


def marked(grads, before, process_set) -> list:
    """Marks gradients as reduced over a process set; returns them.

    Args:
      grads: the gradients; None stays None.
      before: what they were before they were reduced.
      process_set: the ranks that took part.
    """
    results = []
    for grad, one in zip(grads, before, strict=True):
        if grad is not None:
            grad = _own(grad) if grad is one else grad
            setattr(grad, _ATTRIBUTE, process_set.process_set_id)
        results.append(grad)
    return results


def is_marked(grad, process_set) -> bool:
    """Whether marked() returned this very object, for the same ranks."""
    number = getattr(grad, _ATTRIBUTE, None)
    return number is not None and number == process_set.process_set_id
