"""Hooks for Keras 3 optimizers.

They are set on the instance, so class, configuration and saved files remain Keras's own. Every
trainer and loop calls apply(), so gradients are reduced there, before clipping, decay and averages.
With gradient accumulation they must be reduced only when an update is due. Keras decides that
inside apply(), so they are reduced in _clip_gradients(), its last step before the update. What
overwrites its variable is reduced in every pass. A class with an apply_gradients() of its own may
clip before it calls apply(), or call that of other optimizers: it gets the reduced gradients.

compile() under mixed_float16 puts a LossScaleOptimizer around the optimizer. It skips the inner
apply() if this rank's gradients overflowed, which would leave the other ranks waiting. So its
apply() reduces first; under accumulation the ranks agree on "all finite" instead. compile() creates
it after DistributedOptimizer() has returned, so its class is hooked; the hook ignores optimizers
that are not wrapped.
"""

import functools
from typing import Any

from smddp_tf._src.collectives.allreduce import allreduce
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job.reduce_op import Min
from smddp_tf.keras import _distribution, _whole_state
from smddp_tf.keras._distribution import Hook

tf = tensorflow()


def _accumulates(optimizer) -> bool:
    return bool(optimizer.gradient_accumulation_steps)


def _refuse_accumulation(optimizer):
    """For a class that accumulates but updates by other optimizers: nothing reduces there.

    Raises:
      RuntimeError: always.
    """
    raise RuntimeError(
        f"{type(optimizer).__name__} hands its gradients to other optimizers, so with "
        f"gradient_accumulation_steps={optimizer.gradient_accumulation_steps} of its own (which "
        "backward_passes_per_step sets) they are not reduced; give gradient_accumulation_steps to "
        "those optimizers"
    )


class _Apply(Hook):
    calls = 0

    def __call__(self, grads, trainable_variables=None):
        self.calls += 1
        distribution, grads = self.distribution, list(grads)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        variables = trainable_variables or self.optimizer._trainable_variables
        if len(grads) == len(variables):  # otherwise Keras raises
            if _accumulates(self.optimizer):
                grads = distribution.reduce_overwriting(grads, variables)
            elif not distribution.reduced:
                grads = distribution.reduce(grads, variables)
        updates = self.optimizer._backend_apply_gradients
        before = updates.calls
        with distribution.update(self.optimizer, variables), distribution.step():
            result = self.original(grads, trainable_variables)
        if _accumulates(self.optimizer) and updates.calls == before and _updates_by_itself(self):
            _refuse_accumulation(self.optimizer)
        return result


def _updates_by_itself(hook: Hook) -> bool:
    """Whether the method is that of the optimizer's class and not Keras's base class."""
    kinds = [kind for kind in type(hook.optimizer).__mro__ if hook.method in vars(kind)]
    return kinds[0].__name__ != "BaseOptimizer"


class _ApplyReduced(Hook):
    """apply_gradients() of a class that has its own: that gets the reduced gradients."""

    def __call__(self, grads_and_vars, *args, **kwargs):
        distribution = self.distribution
        if _accumulates(self.optimizer):
            return self._accumulated(grads_and_vars, *args, **kwargs)
        if distribution.reduced:
            return self.original(grads_and_vars, *args, **kwargs)
        grads, variables = zip(*grads_and_vars, strict=True)
        reduced = distribution.reduce(grads, variables)
        with distribution.update(self.optimizer, variables), distribution.step():
            return self.original(zip(reduced, variables, strict=True), *args, **kwargs)

    def _accumulated(self, *args, **kwargs):
        """Below apply() gradients are reduced when an update is due; else nothing would do it."""
        optimizer = self.optimizer
        before = optimizer.apply.calls
        result = self.original(*args, **kwargs)
        if optimizer.apply.calls == before:
            _refuse_accumulation(optimizer)
        return result


class _BackendApplyGradients(Hook):
    """Hooks the last method before every update: records its variables, detects local gradients."""

    calls = 0

    def __call__(self, grads, trainable_variables):
        self.calls += 1
        self.distribution.expect_reduced()
        self.optimizer._clip_gradients.variables = list(trainable_variables)
        return self.original(grads, trainable_variables)


class _ClipGradients(Hook):
    variables: list = []

    def __call__(self, grads):
        distribution = self.distribution
        if _accumulates(self.optimizer) and distribution.reduced:
            grads = distribution.reduce(grads, self.variables)
            if distribution.passes > 1 and not distribution.average_passes:
                # Undo Keras's division by the number of passes.
                grads = [g if g is None else g * distribution.passes for g in grads]
        limit = self.optimizer.global_clipnorm
        if distribution.clips_together(limit):
            return distribution.clip_by_global_norm(grads, self.variables, limit)
        return self.original(grads)


def _set_hooks(optimizer, distribution) -> None:
    hooks = {
        "apply": _Apply,
        "_backend_apply_gradients": _BackendApplyGradients,
        "_clip_gradients": _ClipGradients,
    }
    kinds = [kind for kind in type(optimizer).__mro__ if "apply_gradients" in vars(kind)]
    if not kinds[0].__module__.startswith("keras."):
        hooks["apply_gradients"] = _ApplyReduced
    for method, hook in hooks.items():
        setattr(optimizer, method, hook(method, optimizer, distribution))


def _hook_loss_scaling(kind: Any) -> None:
    if hasattr(kind, "_smddp_hooked"):
        return
    apply, check_finite = kind.apply, kind.check_finite

    @functools.wraps(apply)
    def distributed_apply(self, grads, trainable_variables=None):
        distribution = _distribution.of(self.inner_optimizer)
        if distribution is None or distribution.reduced:
            return apply(self, grads, trainable_variables)

        grads, inner = list(grads), self.inner_optimizer
        variables = list(trainable_variables or inner._trainable_variables)
        if distribution.is_local_steps:  # each rank skips its own steps, and scales its own losses
            with distribution.update(self, variables), distribution.step():
                return apply(self, distribution.reduce(grads, variables), variables)
        if not _accumulates(inner):
            with distribution.loss_scaled():
                grads = distribution.reduce(grads, variables)
        rescale = getattr(distribution.options.compression, "rescale", None)
        with distribution.step():
            if rescale is None or _accumulates(inner):  # which reduces what is unscaled already
                return apply(self, grads, trainable_variables)
            before = tf.identity(self.dynamic_scale)
            apply(self, grads, trainable_variables)
            return rescale(self.dynamic_scale / before)

    @functools.wraps(check_finite)
    def distributed_check_finite(self, grads):
        finite = check_finite(self, grads)
        distribution = _distribution.of(self.inner_optimizer)
        if distribution is None or not _accumulates(self.inner_optimizer):
            return finite
        if distribution.is_local_steps:
            return finite

        agreed = allreduce(
            tf.cast(finite, tf.int32),
            op=Min,
            name="all gradients finite",
            process_set=distribution.options.process_set,
        )
        return tf.cast(agreed, tf.bool)

    kind.apply, kind.check_finite = distributed_apply, distributed_check_finite
    _hook_saving(kind)
    kind._smddp_hooked = True


def _hook_saving(kind: Any) -> None:
    """A LossScaleOptimizer saves and loads the variables of the optimizer inside as its own."""
    save, load = kind.save_own_variables, kind.load_own_variables

    @functools.wraps(save)
    def save_own_variables(self, store):
        distribution = _distribution.of(self.inner_optimizer)
        if distribution is None or not distribution.is_divided:
            return save(self, store)
        variables = self._variables + _whole_state.saved_variables(distribution)
        for i, variable in enumerate(variables):
            store[str(i)] = variable.numpy()
        return None

    @functools.wraps(load)
    def load_own_variables(self, store):
        distribution = _distribution.of(self.inner_optimizer)
        divided = distribution is not None and distribution.is_divided
        if not divided or len(store.keys()) != len(self.variables):
            return load(self, store)
        values = [store[str(i)] for i in range(len(store.keys()))]
        own = len(self._variables)
        for variable, value in zip(self._variables, values[:own], strict=True):
            variable.assign(value)
        return _whole_state.assign_parts(self.inner_optimizer, values[own:])

    kind.save_own_variables, kind.load_own_variables = save_own_variables, load_own_variables


def fits(optimizer) -> bool:
    """Whether this is a Keras 3 optimizer."""
    return hasattr(optimizer, "apply") and hasattr(optimizer, "_backend_apply_gradients")


def install(optimizer, distribution) -> None:
    """Installs the hooks that make the optimizer reduce its gradients.

    Raises:
      ValueError: backward_passes_per_step is set after the optimizer was built, or differs from
        gradient_accumulation_steps.
    """
    import keras

    if distribution.passes > 1:
        steps = optimizer.gradient_accumulation_steps
        if steps and steps != distribution.passes:
            raise ValueError(
                f"backward_passes_per_step={distribution.passes} was given for an optimizer that "
                f"has gradient_accumulation_steps={steps}; they mean the same"
            )
        if optimizer.built and not steps:
            raise ValueError(
                "backward_passes_per_step must be given before the optimizer is built (used for "
                "the first time); wrap it when it is made"
            )
        optimizer.gradient_accumulation_steps = distribution.passes
    _set_hooks(optimizer, distribution)
    _hook_loss_scaling(keras.optimizers.LossScaleOptimizer)
