"""Hooks for tf_keras and Keras 2 optimizers whose state is divided among the ranks.

As for Keras 3 (keras3_shards.py), gradients are accumulated, reduced and clipped as without it, and
what touches slots is given this rank's pieces. These Kerases find slots by a variable's key, so
they need pieces' keys alone. They do not keep the variables that an optimizer was built on: one
that was loaded is divided when it is next given them.
"""

import contextlib
import functools
import importlib
from typing import Any

from smddp_tf._src.graph.framework import tensorflow
from smddp_tf.keras import _distribution, _whole_state
from smddp_tf.keras._distribution import ATTRIBUTE, Hook
from smddp_tf.keras._hooks.shards import (
    ApplyWeightDecay,
    OfVariable,
    can_scatter,
    hook_h5,
    is_elementwise,
    require_own,
)
from smddp_tf.keras._shards import Shards

tf = tensorflow()

# What the hooks replace, or rely on as Keras has it.
_KERAS_OWN = ("apply_gradients", "_internal_apply_gradients", "_var_key", "variables")


def require_divisible(optimizer: Any) -> None:
    """Rejects optimizers whose state cannot be divided.

    Raises:
      ValueError: the class keeps its state or updates in a way of its own.
    """
    if type(optimizer).__name__ == "Nadam":
        raise ValueError(
            "shard_state=True cannot divide this Keras's Nadam: in a tf.function its product of "
            "momenta grows with each variable that is updated; Keras 3's can be divided"
        )
    require_own(optimizer, _KERAS_OWN, ["Optimizer", "_BaseOptimizer"])


class _Build(Hook):
    """Called before each update, with all variables."""

    def __call__(self, var_list):
        optimizer, distribution = self.optimizer, self.distribution
        variables = list(var_list)
        if distribution.is_divided:
            return
        if not getattr(optimizer, "_built", False):
            self._divide(variables)
            return
        values = [variable.numpy() for variable in optimizer.variables]
        variables = self._in_order(variables)
        self._forget()
        self._divide(variables)
        _whole_state.assign_parts(optimizer, values)

    def _divide(self, variables) -> None:
        shards = self.distribution.shards
        shards.divide(variables, self.distribution.is_local, _make_piece)
        self.original(list(shards.pieces))
        _whole_state.require_known_slots(self.optimizer)

    def _in_order(self, variables) -> list[Any]:
        """The variables as the optimizer was built on them."""
        optimizer = self.optimizer
        places = {optimizer._var_key(variable): variable for variable in variables}
        if set(places) != set(optimizer._index_dict):
            raise ValueError(
                f"shard_state=True divides an optimizer that was built before it was wrapped when "
                f"it is first given all of its {len(optimizer._index_dict)} variables, not "
                f"{len(variables)} or others; wrap it when it is made"
            )
        order = sorted(optimizer._index_dict, key=lambda key: optimizer._index_dict[key])
        return [places[key] for key in order]

    def _forget(self) -> None:
        """Drops the slots."""
        optimizer, kind = self.optimizer, type(self.optimizer)
        made_first = len(kind.from_config(kind.get_config(optimizer)).variables)
        optimizer._variables = list(optimizer._variables)[:made_first]
        optimizer._built = False
        with contextlib.suppress(AttributeError):  # what a checkpoint was restored into
            del optimizer._coalesced_children


def _make_piece(variable: Any, shape: list[int]) -> Any:
    dtype = getattr(variable, "true_dtype", variable.dtype)  # an AutoCastVariable's own
    return tf.Variable(tf.zeros(shape, dtype), trainable=False, name=variable.name.split(":")[0])


class _ApplyWeightDecay(ApplyWeightDecay):
    """Averages begin as copies of weights, here of those that the first step starts from.

    Keras copies them when it builds the optimizer, which may be before weights are broadcast. A
    weight without a gradient has an average too, which replaces it at the end of fit().
    """

    def begin(self) -> None:
        optimizer, shards = self.optimizer, self.distribution.shards
        if not optimizer.use_ema:
            return
        averages = optimizer._model_variables_moving_average

        def copy():
            shards.refresh(shards.variables)
            for average, piece in zip(averages, shards.pieces, strict=True):
                average.assign(piece)

        tf.cond(optimizer.iterations < self.distribution.passes, copy, lambda: None)


class _InternalApplyGradients(Hook):
    """Updates, and averages the weights."""

    def __init__(self, method, optimizer, distribution) -> None:
        super().__init__(method, optimizer, distribution)
        self.hooked = vars(optimizer)[method]

    def __call__(self, grads_and_vars):
        shards = self.distribution.shards
        grads, variables = zip(*grads_and_vars, strict=True)
        own = zip(shards.own_gradients(grads, variables), shards.own_pieces(variables), strict=True)
        iteration = self.hooked(list(own))
        shards.gather(variables)
        return iteration


class _DistributedApplyGradients(Hook):
    """Keras's loop over variables, which needs one at least where there are averages."""

    def __call__(self, distribution, grads_and_vars, **kwargs):
        if grads_and_vars:
            return self.original(distribution, grads_and_vars, **kwargs)
        return self.optimizer.iterations.assign_add(1)


class _FinalizeVariableValues(Hook):
    """At the end of fit(): the weights become their averages."""

    def __call__(self, var_list):
        if self.optimizer.use_ema:
            shards = self.distribution.shards
            self.original(shards.own_pieces(var_list))
            shards.gather(var_list)


class _TrackableChildren(_whole_state.TrackableChildren):
    """These Kerases write the optimizer into SavedModels too."""

    def __call__(self, save_type: str = "checkpoint", **options: Any) -> Any:
        if self.distribution.is_divided:
            whole = _whole_state.saved_optimizer(self.distribution)
            return whole._trackable_children(save_type, **options)
        return self.original(save_type, **options)


_HOOKS = {
    "build": _Build,
    "_use_weight_decay": OfVariable,
    "_apply_weight_decay": _ApplyWeightDecay,
    "_internal_apply_gradients": _InternalApplyGradients,
    "_distributed_apply_gradients_fn": _DistributedApplyGradients,
    "finalize_variable_values": _FinalizeVariableValues,
    "save_own_variables": _whole_state.SaveOwnVariables,
    "load_own_variables": _whole_state.LoadOwnVariables,
    "_trackable_children": _TrackableChildren,
    "_lookup_dependency": _whole_state.LookupDependency,
}


def _hook_loss_scaling(package: str) -> None:
    """A LossScaleOptimizer saves and loads the variables of the optimizer inside as its own."""
    scaling = importlib.import_module(f"{package}.mixed_precision.loss_scale_optimizer")
    kind: Any = scaling.LossScaleOptimizerV3
    if "_smddp_saving_hooked" in vars(kind):
        return
    save, load = kind.save_own_variables, kind.load_own_variables

    @functools.wraps(save)
    def save_own_variables(self, store):
        distribution = _distribution.of(self.inner_optimizer)
        if distribution is None or not distribution.is_divided:
            return save(self, store)
        return self.inner_optimizer.save_own_variables(store)

    @functools.wraps(load)
    def load_own_variables(self, store):
        distribution = _distribution.of(self.inner_optimizer)
        if distribution is None or not distribution.is_divided:
            return load(self, store)
        return self.inner_optimizer.load_own_variables(store)

    kind.save_own_variables, kind.load_own_variables = save_own_variables, load_own_variables
    kind._smddp_saving_hooked = True


def install(optimizer: Any, distribution: Any) -> None:
    """Installs the hooks, behind those that reduce."""
    package = _distribution.package_of(optimizer)
    hook_h5(importlib.import_module(f"{package}.saving.legacy.hdf5_format"))
    _hook_loss_scaling(package)
    distribution.shards = Shards(
        distribution.options.process_set,
        is_elementwise(optimizer),
        # Passes that update nothing have gradients of all rows, which are zeros.
        lambda: can_scatter(optimizer) and distribution.passes == 1,
    )
    setattr(optimizer, ATTRIBUTE, distribution)
    for method, hook in _HOOKS.items():
        setattr(optimizer, method, hook(method, optimizer, distribution))
