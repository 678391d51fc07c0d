"""Collects the state of a Keras model that must be equal on all ranks."""

import re
from collections.abc import Iterable
from typing import Any

from smddp_tf._src.gradients.equality import digests
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.state import share
from smddp_tf._src.state.variables import variables_only
from smddp_tf._src.types import Variable
from smddp_tf.keras import _distribution
from smddp_tf.keras.callbacks._base import optimizers_of, variables_of

tf = tensorflow()


def _identity(variable: Variable) -> int:
    return id(getattr(variable, "_value", variable))


def _layers(model: Any) -> list[Any]:
    return list(getattr(model, "_flatten_layers", lambda: [model])())


def gradient_weights(model: Any) -> list[Variable]:
    """Weights created as trainable, even if frozen; excludes the layers' other state."""
    kept = set()
    for layer in _layers(model):
        for name in ("_trainable_variables", "_trainable_weights"):  # Keras 3; tf_keras, Keras 2
            kept |= {_identity(variable) for variable in getattr(layer, name, ())}
    kept |= {_identity(variable) for variable in model.trainable_variables}
    return [weight for weight in variables_only(model.weights) if _identity(weight) in kept]


def _is_random_state(variable: Variable) -> bool:
    """Whether the variable is the state of a random generator, which differs per rank."""
    name = getattr(variable, "path", "") or variable.name
    return "seed_generator" in name or name.split(":")[0].endswith("StateVar")


def local_weights(optimizers: list[Any], weights: Iterable[Variable]) -> list[Variable]:
    """The weights whose gradients stay local (register_local_var)."""
    found = []
    for distribution in filter(None, map(_distribution.of, optimizers)):
        found += [weight for weight in weights if distribution.is_local(weight)]
    return found


def between_exchanges(optimizers: list[Any]) -> list[Variable]:
    """The weights that are each rank's own until the next exchange (sync_every)."""
    found: list[Variable] = []
    for distribution in filter(None, map(_distribution.of, optimizers)):
        found += distribution.not_exchanged()
    return found


def slots_of(optimizer: Any, weights: Iterable[Variable]) -> list[Variable]:
    """The slot variables of these weights, if the optimizer has them yet."""
    inner = _distribution.innermost(optimizer)
    return [slot for weight in weights for slot in _slots_of_one(inner, weight)]


def _slots_of_one(optimizer: Any, weight: Variable) -> list[Variable]:
    if hasattr(optimizer, "get_slot_names"):  # legacy optimizer
        key = getattr(weight, "_unique_id", None)
        return list(optimizer._slots.get(key, {}).values())
    if hasattr(optimizer, "_index_dict"):  # tf_keras, Keras 2
        index, count = optimizer._index_dict.get(weight._unique_id), len(optimizer._index_dict)
    elif hasattr(optimizer, "_trainable_variables_indices"):  # Keras 3
        index = optimizer._trainable_variables_indices.get(optimizer._var_key(weight))
        count = len(optimizer._trainable_variables)
    else:  # it is not built
        return []
    if index is None:
        return []

    lists = [
        value
        for name, value in vars(optimizer).items()
        if name not in ("_variables", "_trainable_variables") and isinstance(value, (list, tuple))
    ]
    slots = [one[index] for one in lists if len(one) == count]
    return [slot for slot in slots if hasattr(type(slot), "assign")]


def sums_of(optimizer: Any) -> list[Variable]:
    """Keras 3's sums of gradients since the last update, which each rank has of its own batches."""
    return list(getattr(_distribution.innermost(optimizer), "_accumulated_gradients", None) or ())


def _optimizer_state(optimizer: Any, local: Iterable[Variable]) -> list[Variable]:
    """An optimizer's variables, except slots of local weights and accumulated gradients."""
    left_out = slots_of(optimizer, local) + sums_of(optimizer)
    skipped = {_identity(variable) for variable in left_out}
    return [v for v in variables_of(optimizer) if _identity(v) not in skipped]


def _plain(value: Any) -> Any:
    """A configuration's value without what differs by process: where its objects lie in memory."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if hasattr(value, "get_config"):
        return _schedule(value)
    return value if isinstance(value, str) else re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _schedule(schedule: Any) -> str:
    try:
        config = schedule.get_config()
    except NotImplementedError:  # Keras asks for it only to save
        config = vars(schedule)
    return f"{type(schedule).__name__} {_plain(config)}"


def _rate(optimizer: Any) -> str:
    rate = getattr(optimizer, "learning_rate", None)
    if hasattr(rate, "get_config"):
        return _schedule(rate)
    try:
        return repr(float(tf.convert_to_tensor(rate)))
    except (TypeError, ValueError):
        return type(rate).__name__


def options(model: Any) -> dict[str, Any]:
    """The reduction options of each optimizer, as entries for differences()."""
    found = {}
    for i, optimizer in enumerate(optimizers_of(model)):
        kind, distribution = type(_distribution.innermost(optimizer)).__name__, None
        distribution = _distribution.of(optimizer)
        texts = {"optimizer": kind, "distributed": str(distribution is not None)}
        if distribution is not None:
            texts |= distribution.description()
        for name, text in texts.items():
            found[f"{i} {name}"] = (f"{name} of {kind}", text)
    return found


def everything(model: Any, excluded: Any = (), also_statistics: bool = False) -> dict[str, Any]:
    """Weights, optimizers' variables and options, layers' state, as entries for differences().

    Args:
      model: a Keras model.
      excluded: variables that may differ, besides local ones and random generators' state.
      also_statistics: include non-trainable state, such as moving statistics.
    """
    optimizers = optimizers_of(model)
    weights = variables_only(model.weights) if also_statistics else gradient_weights(model)
    local = local_weights(optimizers, weights)
    own = between_exchanges(optimizers)
    left_out = {_identity(variable) for variable in (*local, *own, *excluded)}
    compared = [w for w in weights if _identity(w) not in left_out and not _is_random_state(w)]

    found = digests(compared, "variable") | options(model) | share.fingerprint(model, left_out)
    for i, optimizer in enumerate(optimizers):
        distribution = _distribution.of(optimizer)
        if distribution is not None and distribution.is_local_steps:
            found |= digests(distribution.state_variables(), f"optimizer variable {i}:")
            continue
        state = [v for v in _optimizer_state(optimizer, local) if _identity(v) not in left_out]
        found |= digests(state, f"optimizer variable {i}:")
        inner = _distribution.innermost(optimizer)
        found[f"{i} rate"] = (f"learning rate of {type(inner).__name__}", _rate(inner))
    return found
