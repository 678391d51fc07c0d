"""Hooks for tf.compat.v1.train optimizers: compute_gradients() reduces, as in Horovod.

Gradients that a script computes itself are reduced in apply_gradients().
"""

from smddp_tf._gradients.marks import marked
from smddp_tf._graph.framework import tensorflow
from smddp_tf.keras._distribution import Hook

tf = tensorflow()


class _Reducing(Hook):
    def reduced(self, pairs) -> list:
        pairs = list(pairs)
        variables = [variable for _, variable in pairs]
        before = [grad for grad, _ in pairs]
        grads = self.distribution.reduce(before, variables)
        process_set = self.distribution.options.process_set
        if process_set.size() > 1:
            grads = marked(grads, before, process_set)
        return list(zip(grads, variables, strict=True))


class _ComputeGradients(_Reducing):
    def __call__(self, *args, **kwargs):
        pairs = self.reduced(self.original(*args, **kwargs))
        self.distribution.mark_reduced()
        return pairs


class _ApplyGradients(_Reducing):
    def __call__(self, grads_and_vars, *args, **kwargs):
        if not self.distribution.reduced:
            grads_and_vars = self.reduced(grads_and_vars)
        self.distribution.mark_reduced(False)
        return self.original(grads_and_vars, *args, **kwargs)


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
