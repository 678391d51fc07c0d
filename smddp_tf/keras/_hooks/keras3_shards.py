"""Hooks for Keras 3 optimizers whose state is divided among the ranks.

Gradients are accumulated, reduced and clipped as without it. Only what touches slots is given this
rank's pieces: decay, update, moving averages. The weights are gathered after each.
"""

import importlib
from typing import Any

from smddp_tf._src.graph.framework import tensorflow
from smddp_tf.keras import _whole_state
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
_KERAS_OWN = ("apply", "apply_gradients", "_backend_apply_gradients", "variables")


def require_divisible(optimizer: Any) -> None:
    """Rejects optimizers whose state cannot be divided.

    Raises:
      ValueError: the class keeps its state or updates in a way of its own.
    """
    kind = type(optimizer)
    if kind.__name__ == "ScheduleFreeAdamW":
        raise ValueError(
            "shard_state=True cannot divide ScheduleFreeAdamW: its slots begin as copies of the "
            "weights, before those are broadcast"
        )
    require_own(optimizer, _KERAS_OWN, ["BaseOptimizer"])


class _Build(Hook):
    def __call__(self, variables):
        optimizer, shards = self.optimizer, self.distribution.shards
        if optimizer.built:
            return
        shards.divide(variables, self._is_kept, _make_piece)
        self.original(list(shards.pieces))
        # Elsewhere Keras means the variables. Its own way to set them would count them as slots.
        object.__setattr__(optimizer, "_trainable_variables", list(shards.variables))
        optimizer._trainable_variables_indices.clear()
        for i, variable in enumerate(shards.variables):
            key = optimizer._var_key(variable)
            optimizer._trainable_variables_indices[key] = i
            if hasattr(optimizer, "_weight_decay_by_var_key"):  # since Keras 3.16
                excluded = optimizer._is_excluded_from_weight_decay(variable)
                optimizer._weight_decay_by_var_key[key] = not excluded
        _whole_state.require_known_slots(optimizer)

    def _is_kept(self, variable) -> bool:
        overwritten = getattr(variable, "overwrite_with_gradient", False)
        return overwritten or self.distribution.is_local(variable)


def _make_piece(variable: Any, shape: list[int]) -> Any:
    import keras

    sanitised = str(variable.name).split(":")[0].replace("/", "_")
    piece = keras.Variable(
        "zeros", shape=shape, dtype=variable.dtype, trainable=False, name=sanitised
    )
    # Slots are named after it, and Muon asks it for the layer.
    piece._path = getattr(variable, "path", str(variable.name).replace(":", "_"))
    return piece


class _AddVariableFromReference(Hook):
    """Accumulated gradients are of all elements: they are summed before they are reduced."""

    def __call__(self, reference_variable, name=None, initializer="zeros"):
        if name == "gradient_accumulator":
            shards = self.distribution.shards
            reference_variable = shards.variables[shards.place(reference_variable)]
        return self.original(reference_variable, name=name, initializer=initializer)


class _GetVariableIndex(Hook):
    def __call__(self, variable):
        return self.distribution.shards.place(variable)


class _BackendUpdateStep(Hook):
    def __call__(self, grads, trainable_variables, learning_rate):
        shards, variables = self.distribution.shards, list(trainable_variables)
        own = shards.own_gradients(grads, variables)
        self.original(own, shards.own_pieces(variables), learning_rate)
        shards.gather(variables)


class _OfAverages(Hook):
    """Calls a method with this rank's pieces, and with their averages alone."""

    def of_own(self, variables) -> None:
        optimizer, shards = self.optimizer, self.distribution.shards
        every = optimizer._model_variables_moving_average
        own = [every[i] for i in map(shards.place, variables) if shards.owns_some(i)]
        object.__setattr__(optimizer, "_model_variables_moving_average", own)
        try:
            self.original(shards.own_pieces(variables))
        finally:
            object.__setattr__(optimizer, "_model_variables_moving_average", every)


class _UpdateMovingAverage(_OfAverages):
    def __call__(self, trainable_variables):
        if self.optimizer.use_ema:
            self.distribution.shards.refresh(trainable_variables)
            self.of_own(trainable_variables)


class _OverwriteWithAverage(_OfAverages):
    """Once in a while, and at the end of fit()."""

    def __call__(self, trainable_variables):
        self.of_own(trainable_variables)
        self.distribution.shards.gather(trainable_variables)


_HOOKS = {
    "build": _Build,
    "add_variable_from_reference": _AddVariableFromReference,
    "_get_variable_index": _GetVariableIndex,
    "_use_weight_decay": OfVariable,
    "_apply_weight_decay": ApplyWeightDecay,
    "_backend_update_step": _BackendUpdateStep,
    "_update_model_variables_moving_average": _UpdateMovingAverage,
    "_overwrite_model_variables_with_average_value": _OverwriteWithAverage,
    "save_own_variables": _whole_state.SaveOwnVariables,
    "load_own_variables": _whole_state.LoadOwnVariables,
    "_trackable_children": _whole_state.TrackableChildren,
    "_lookup_dependency": _whole_state.LookupDependency,
}


def install(optimizer: Any, distribution: Any) -> None:
    """Installs the hooks, and divides the state of an optimizer that has one already."""
    hook_h5(importlib.import_module("keras.src.legacy.saving.legacy_h5_format"))
    distribution.shards = Shards(
        distribution.options.process_set,
        is_elementwise(optimizer),
        lambda: can_scatter(optimizer),
    )
    setattr(optimizer, ATTRIBUTE, distribution)
    for method, hook in _HOOKS.items():
        setattr(optimizer, method, hook(method, optimizer, distribution))
    if optimizer.built:
        _whole_state.divide_built(optimizer)
