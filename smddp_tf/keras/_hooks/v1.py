"""Hooks for tf.compat.v1.train optimizers: compute_gradients() reduces, as in Horovod.

Gradients that a script computes itself are reduced in apply_gradients(). It knows those of
compute_gradients() by their marks, and what a script made of them, by clipping say, by the graph.
"""

from typing import Any

from smddp_tf._src.gradients.marks import is_marked, mark_what_comes_from_marked, marked
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.graph.ops.ranks import set_is_alone
from smddp_tf.keras._distribution import Hook
from smddp_tf.keras._hooks.passes import Passes

tf = tensorflow()


class _Reducing(Hook):
    def reduced(self, pairs) -> list:
        pairs = list(pairs)
        variables = [variable for _, variable in pairs]
        before = [grad for grad, _ in pairs]
        grads = self.distribution.reduce(before, variables)
        process_set = self.distribution.options.process_set
        if not set_is_alone(process_set):
            grads = marked(grads, before, process_set)
        return list(zip(grads, variables, strict=True))


class _ComputeGradients(_Reducing):
    called_eagerly = False

    def __call__(self, *args, **kwargs):
        self.called_eagerly |= tf.executing_eagerly()
        return self.reduced(self.original(*args, **kwargs))


class _ApplyGradients(_Reducing):
    def __call__(self, grads_and_vars, *args, **kwargs):
        pairs = list(grads_and_vars)
        process_set = self.distribution.options.process_set
        if not set_is_alone(process_set):
            grads = [grad for grad, _ in pairs if grad is not None]
            mark_what_comes_from_marked(grads, process_set, [variable for _, variable in pairs])
            unmarked = [grad for grad in grads if not is_marked(grad, process_set)]
            if unmarked and tf.executing_eagerly():
                self._require_harmless()
            pairs = self.reduced(pairs)
        return self.original(pairs, *args, **kwargs)

    def _require_harmless(self) -> None:
        """Rejects what may have been reduced, if doing so again would change it.

        Raises:
          RuntimeError: nothing tells in eager execution, and it would, as with op=Sum.
        """
        options = self.distribution.options
        if options.is_idempotent() or not self.optimizer.compute_gradients.called_eagerly:
            return
        raise RuntimeError(
            f"apply_gradients() with op={options.op} got gradients that compute_gradients() did "
            "not return. Made of those, they must not be reduced again; else they must "
            "be, and in eager execution nothing tells: call both inside one tf.function, or give "
            "gradients of the script's own to an optimizer object of their own"
        )


class _Accumulating(Hook):
    """Adds up the gradients of several passes; without an update due, those returned are zeros."""

    def __init__(self, method, optimizer, distribution, passes) -> None:
        super().__init__(method, optimizer, distribution)
        self.passes = passes

    def accumulated(self, pairs) -> tuple:
        """The pairs with reduced sums, and whether an update is due, as a tensor."""
        pairs = list(pairs)
        process_set = self.distribution.options.process_set
        given = [(grad, variable) for grad, variable in pairs if grad is not None]
        grads, variables = [grad for grad, _ in given], [variable for _, variable in given]
        sums, is_update = self.passes.add(
            grads, variables, lambda sums: self.distribution.reduce(sums, variables)
        )
        found = iter(marked(sums, grads, process_set))
        results = [None if grad is None else next(found) for grad, _ in pairs]
        return list(zip(results, [variable for _, variable in pairs], strict=True)), is_update


class _ComputeAccumulated(_Accumulating):
    is_update: Any = None  # a tensor of the current graph or step

    def __call__(self, *args, **kwargs):
        pairs, self.is_update = self.accumulated(self.original(*args, **kwargs))
        return pairs


class _ApplyWhenDue(_Accumulating):
    """apply_gradients() that updates only when due; other passes only increment the step."""

    def __call__(self, grads_and_vars, global_step=None, name=None):
        pairs, compute = list(grads_and_vars), self.optimizer.compute_gradients
        if self._are_accumulated([grad for grad, _ in pairs if grad is not None], pairs):
            is_update = compute.is_update
        else:
            pairs, is_update = self.accumulated(pairs)
        if tf.executing_eagerly():
            compute.is_update = None

        def update():
            applied = self.original(pairs, global_step=global_step, name=name)
            with tf.control_dependencies([] if applied is None else [applied]):
                return tf.constant(True)

        def count():
            steps = [] if global_step is None else [global_step.assign_add(1)]
            with tf.control_dependencies([tf.identity(step) for step in steps]):
                return tf.constant(False)

        applied = tf.cond(is_update, update, count)
        return None if tf.executing_eagerly() else applied.op

    def _are_accumulated(self, grads, pairs) -> bool:
        """Whether compute_gradients() returned these, or what the script made them of."""
        if tf.executing_eagerly():  # nothing tells
            return self.optimizer.compute_gradients.is_update is not None
        process_set = self.distribution.options.process_set
        mark_what_comes_from_marked(grads, process_set, [variable for _, variable in pairs])
        return all(is_marked(grad, process_set) for grad in grads)


def fits(optimizer) -> bool:
    """Whether this is a TF1 optimizer."""
    return isinstance(optimizer, tf.compat.v1.train.Optimizer)


def install(optimizer, distribution) -> None:
    """Installs the hooks that make the optimizer reduce its gradients."""
    extra: tuple = ()
    kinds: tuple = (_ComputeGradients, _ApplyGradients)
    if distribution.passes > 1:
        extra = (Passes(distribution.passes, distribution.average_passes),)
        kinds = (_ComputeAccumulated, _ApplyWhenDue)
    for kind, method in zip(kinds, ("compute_gradients", "apply_gradients"), strict=True):
        setattr(optimizer, method, kind(method, optimizer, distribution, *extra))
