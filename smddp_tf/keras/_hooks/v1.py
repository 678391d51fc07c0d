"""Hooks for tf.compat.v1.train optimizers: compute_gradients() reduces, as in Horovod.

Gradients that a script computes itself are reduced in apply_gradients(). It knows those of
compute_gradients() by their marks, and what a script made of them, by clipping say, by the graph.
"""

from smddp_tf._src.gradients.marks import is_marked, mark_what_comes_from_marked, marked
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.graph.ops.ranks import set_is_alone
from smddp_tf.keras._distribution import Hook

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


def fits(optimizer) -> bool:
    """Whether this is a TF1 optimizer."""
    return isinstance(optimizer, tf.compat.v1.train.Optimizer)


def install(optimizer, distribution) -> None:
    """Installs the hooks that make the optimizer reduce its gradients.

    Raises:
      ValueError: backward_passes_per_step is not 1.
    """
    if distribution.passes > 1:
        raise ValueError(
            f"backward_passes_per_step={distribution.passes} needs a Keras optimizer; with "
            "tf.compat.v1 optimizers add up the gradients in the script"
        )
    for kind, method in (
        (_ComputeGradients, "compute_gradients"),
        (_ApplyGradients, "apply_gradients"),
    ):
        setattr(optimizer, method, kind(method, optimizer, distribution))
