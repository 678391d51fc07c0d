"""Hooks for tf_keras and Keras 2 optimizers, in both the current and the legacy style.

Gradients are reduced in the method that Keras provides for it (aggregate_gradients or
_aggregate_gradients), which their LossScaleOptimizers call before checking for overflows. A class
with an apply_gradients() of its own may hand the gradients to other optimizers, and so never call
that method, or clip before it does: there they are reduced before all that. Hooks are set on the
instance, so class, configuration and saved files remain Keras's own. Only the classes of
LossScaleOptimizers are hooked themselves, as compile() under mixed_float16 makes one afterwards.
"""

import functools
import importlib
import threading
from typing import Any

from smddp_tf._src.graph.framework import tensorflow
from smddp_tf.keras import _distribution
from smddp_tf.keras._distribution import Hook
from smddp_tf.keras._hooks.passes import Passes

tf = tensorflow()


class _Allreduce(Hook):
    """The reduction in an update, by Horovod's private name.

    Libraries replace it on an optimizer: NVIDIA's distributed-embeddings, to register the tables
    that a rank has for itself.
    """

    def __call__(self, grads, variables):
        return self.optimizer._allreduce_grads(list(grads), list(variables))


class _AllreduceGrads(Hook):
    """What _allreduce() calls in Horovod; replaced by libraries too."""

    def __call__(self, grads, variables, use_generic_names=False):
        del use_generic_names  # order decides which collectives belong together, not names
        return self.distribution.reduce(grads, variables)


class _Aggregate(Hook):
    def __init__(self, *args) -> None:
        super().__init__(*args)
        self._of_thread = threading.local()  # MirroredStrategy has a thread for each replica

    @property
    def done(self) -> bool:
        """Whether apply_gradients() did it already."""
        return getattr(self._of_thread, "done", False)

    @done.setter
    def done(self, value: bool) -> None:
        self._of_thread.done = value

    def __call__(self, grads_and_vars):
        pairs = list(grads_and_vars)
        if self.done:
            return pairs
        variables = [variable for _, variable in pairs]
        grads = self.optimizer._allreduce([grad for grad, _ in pairs], variables)
        self.distribution.aggregated = variables
        self.distribution.mark_reduced()
        pairs = list(zip(grads, variables, strict=True))
        # Keras's own method sums over this process's replicas, as of a MirroredStrategy.
        return self.original(pairs) if _replicas() > 1 else pairs


def _replicas() -> int:
    return tf.distribute.get_strategy().num_replicas_in_sync


class _ApplyReduced(Hook):
    """apply_gradients() of a class that has its own: that gets the reduced gradients."""

    def __init__(self, method, optimizer, distribution, aggregate) -> None:
        super().__init__(method, optimizer, distribution)
        self.aggregate = aggregate

    def __call__(self, grads_and_vars, *args, **kwargs):
        skipped = kwargs.get("skip_gradients_aggregation", False)
        skipped |= not kwargs.get("experimental_aggregate_gradients", True)
        if skipped:  # by who reduced them, as a LossScaleOptimizer, or is warned by _Update
            return self.original(grads_and_vars, *args, **kwargs)
        pairs, before = self.aggregate(grads_and_vars), self.aggregate.done
        # The arguments that tell Keras not to aggregate again are unknown to some classes.
        self.aggregate.done = True
        try:
            return self.original(pairs, *args, **kwargs)
        finally:
            self.aggregate.done = before
            self.distribution.mark_reduced(False)


class _Update(Hook):
    """Hooks the last method before every update, to detect unreduced gradients."""

    def __call__(self, *args, **kwargs):
        self.distribution.expect_reduced()
        self.distribution.mark_reduced(False)
        return self.original(*args, **kwargs)


class _AccumulateAndAggregate(Hook):
    """Accumulates gradients: returns the reduced sums when an update is due, otherwise zeros."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.passes = Passes(self.distribution.passes, self.distribution.average_passes)
        self.is_update: Any = None  # a tensor of the current trace or step

    def __call__(self, grads_and_vars):
        pairs = [(grad, variable) for grad, variable in grads_and_vars if grad is not None]
        variables = [variable for _, variable in pairs]
        reduced, self.is_update = self.passes.add(
            [grad for grad, _ in pairs],
            variables,
            lambda sums: self.optimizer._allreduce(sums, variables),
        )
        self.distribution.aggregated = variables
        self.distribution.mark_reduced()
        return list(zip(reduced, variables, strict=True))


class _ApplyWhenDue(Hook):
    """apply_gradients() that updates only when due; other passes only increment `iterations`."""

    def __init__(self, method, optimizer, distribution, aggregate, skip) -> None:
        super().__init__(method, optimizer, distribution)
        self.aggregate = aggregate
        self.skip = skip  # the argument that tells Keras not to aggregate again

    def __call__(self, grads_and_vars, name=None, **kwargs):
        pairs = list(grads_and_vars)
        aggregated = kwargs.pop("skip_gradients_aggregation", False)
        aggregated |= not kwargs.pop("experimental_aggregate_gradients", True)
        if not aggregated:
            pairs = self.aggregate(pairs)
        is_update, self.aggregate.is_update = self.aggregate.is_update, None
        if is_update is None:
            raise ValueError(
                f"backward_passes_per_step={self.distribution.passes} needs gradients that this "
                "optimizer has aggregated itself. Call apply_gradients() without "
                "skip_gradients_aggregation=True and experimental_aggregate_gradients=False"
            )

        optimizer, variables = self.optimizer, [variable for _, variable in pairs]
        with tf.init_scope():
            # Slots cannot be created inside tf.cond.
            create = "build" if hasattr(optimizer, "build") else "_create_all_weights"
            getattr(optimizer, create)(variables)

        def update():
            self.original(pairs, name=name, **self.skip, **kwargs)
            return tf.constant(True)

        def count():
            optimizer.iterations.assign_add(1)
            return tf.constant(False)

        applied = tf.cond(is_update, update, count)
        return optimizer.iterations if tf.executing_eagerly() else applied.op


class _ClipGradients(Hook):
    """Hooks clipping in the current style; the variables are those aggregated last."""

    def __call__(self, grads):
        limit, variables = self.optimizer.global_clipnorm, self.distribution.aggregated
        if not self.distribution.clips_together(limit):
            return self.original(grads)
        return self.distribution.clip_by_global_norm(grads, variables, limit)


class _TransformGradients(Hook):
    """Hooks clipping in the legacy style, where it is one of several transformations."""

    def __call__(self, grads_and_vars):
        optimizer, pairs = self.optimizer, list(grads_and_vars)
        limit = optimizer.global_clipnorm
        if not self.distribution.clips_together(limit):
            return self.original(pairs)

        def clip(pairs):
            grads, variables = zip(*pairs, strict=True)
            clipped = self.distribution.clip_by_global_norm(grads, variables, limit)
            return list(zip(clipped, variables, strict=True))

        own, optimizer._global_clipnorm_fn = optimizer._global_clipnorm_fn, clip
        try:
            return self.original(pairs)
        finally:
            optimizer._global_clipnorm_fn = own


class _LocalStep(Hook):
    """apply_gradients() as a local step: it goes on to what was hooked before."""

    def __init__(self, method, optimizer, distribution) -> None:
        super().__init__(method, optimizer, distribution)
        self.hooked = vars(optimizer).get(method)

    def __call__(self, grads_and_vars, *args, **kwargs):
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        with self.distribution.update(self.optimizer, variables):
            return (self.hooked or self.original)(pairs, *args, **kwargs)


def _hook_loss_scaling(optimizer) -> None:
    """Tells the distribution when a LossScaleOptimizer of the same Keras asks for gradients."""
    package = _distribution.package_of(optimizer)
    scaling = importlib.import_module(f"{package}.mixed_precision.loss_scale_optimizer")
    for kind in (scaling.LossScaleOptimizer, scaling.LossScaleOptimizerV3):
        if "_smddp_hooked" not in vars(kind):
            kind.apply_gradients = _scaled(kind.apply_gradients)
            kind._smddp_hooked = True


def _scaled(apply):
    @functools.wraps(apply)
    def distributed_apply(self, grads_and_vars, *args, **kwargs):
        distribution = _distribution.of(self.inner_optimizer)
        if distribution is None:
            return apply(self, grads_and_vars, *args, **kwargs)
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        with distribution.loss_scaled(), distribution.update(self, variables):
            return apply(self, pairs, *args, **kwargs)

    return distributed_apply


def _applies_by_itself(optimizer) -> bool:
    """Whether apply_gradients() is not Keras's."""
    package = _distribution.package_of(optimizer)
    kinds = [kind for kind in type(optimizer).__mro__ if "apply_gradients" in vars(kind)]
    return not kinds[0].__module__.startswith(f"{package}.")


def fits(optimizer) -> bool:
    """Whether this is a tf_keras or Keras 2 optimizer, of either style."""
    return hasattr(optimizer, "aggregate_gradients") or hasattr(optimizer, "_aggregate_gradients")


def install(optimizer, distribution) -> None:
    """Installs the hooks that make the optimizer reduce its gradients."""
    legacy = not hasattr(optimizer, "aggregate_gradients")
    aggregate = "_aggregate_gradients" if legacy else "aggregate_gradients"
    update = "_distributed_apply" if legacy else "_internal_apply_gradients"
    optimizer._allreduce = _Allreduce("_allreduce", optimizer, distribution)
    optimizer._allreduce_grads = _AllreduceGrads("_allreduce_grads", optimizer, distribution)
    kind = _Aggregate if distribution.passes == 1 else _AccumulateAndAggregate
    hook = kind(aggregate, optimizer, distribution)
    setattr(optimizer, aggregate, hook)
    setattr(optimizer, update, _Update(update, optimizer, distribution))
    clip = "_transform_gradients" if legacy else "_clip_gradients"
    clipping = _TransformGradients if legacy else _ClipGradients
    setattr(optimizer, clip, clipping(clip, optimizer, distribution))
    _hook_loss_scaling(optimizer)
    if distribution.passes > 1:
        skip = {"experimental_aggregate_gradients": False}
        if not legacy:
            skip = {"skip_gradients_aggregation": True}
        due = _ApplyWhenDue("apply_gradients", optimizer, distribution, hook, skip)
        optimizer.apply_gradients = due
    elif _applies_by_itself(optimizer):
        reduced = _ApplyReduced("apply_gradients", optimizer, distribution, hook)
        optimizer.apply_gradients = reduced
    if distribution.is_local_steps:
        optimizer.apply_gradients = _LocalStep("apply_gradients", optimizer, distribution)
