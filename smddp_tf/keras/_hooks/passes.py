"""Adds up the gradients of several backward passes, and reduces their sums."""

from collections.abc import Callable
from typing import Any

from smddp_tf._src.graph.framework import tensorflow

tf = tensorflow()


class Passes:
    """The sums of some passes' gradients. They are dense, and not saved with the optimizer.

    Args:
      count: backward passes per update.
      average: divide the sums by their number.
    """

    def __init__(self, count: int, average: bool) -> None:
        self.count = count
        self._factor = 1.0 / count if average else 1.0
        self._sums: list = []
        self._done: Any = None

    def add(self, grads: list, variables: list, reduce: Callable[[list], list]) -> tuple[list, Any]:
        """Adds the gradients of one pass.

        Args:
          grads: tensors, or tf.IndexedSlices, in the order of the variables.
          variables: the same in every pass.
          reduce: reduce(sums) reduces them over the ranks.

        Returns:
          The reduced sums if an update is due, otherwise zeros; and whether it is, as a tensor.

        Raises:
          ValueError: another number of gradients than in the pass before.
        """
        grads = [tf.convert_to_tensor(grad) for grad in grads]
        if self._done is None:
            self._create(grads, variables)
        if len(grads) != len(self._sums):
            raise ValueError(
                f"backward_passes_per_step={self.count} needs gradients of the same variables in "
                f"every pass; there were {len(self._sums)}, now {len(grads)}"
            )

        totals = [total.assign_add(grad) for total, grad in zip(self._sums, grads, strict=True)]
        done = self._done.assign_add(1)
        # In a TF1 graph nothing else has the branches below wait for the sums.
        added = [] if tf.executing_eagerly() else [tf.identity(total) for total in totals]
        with tf.control_dependencies(added):
            is_update = tf.equal(done % self.count, 0)

        def update():
            reduced = reduce(list(map(tf.identity, totals)))
            with tf.control_dependencies(reduced):
                cleared = [total.assign(tf.zeros_like(total)) for total in self._sums]
            with tf.control_dependencies([tf.identity(total) for total in cleared]):
                return [grad * tf.constant(self._factor, grad.dtype) for grad in reduced]

        def wait():
            return [tf.zeros_like(grad) for grad in grads]

        return tf.cond(is_update, update, wait), is_update

    def _create(self, grads: list, variables: list) -> None:
        with tf.init_scope():  # the shape of a gradient that was sparse may be unknown
            self._done = _variable(tf.zeros([], tf.int64))
            self._sums = [
                _variable(tf.zeros(variable.shape, grad.dtype))
                for grad, variable in zip(grads, variables, strict=True)
            ]


def _variable(value: Any) -> Any:
    """A variable; in a TF1 graph a local one, which no checkpoint has, as Horovod's are."""
    if tf.executing_eagerly():
        return tf.Variable(value, trainable=False)
    v1 = tf.compat.v1
    local = [v1.GraphKeys.LOCAL_VARIABLES]
    return v1.Variable(value, trainable=False, collections=local, use_resource=True)
