"""Compares what layers keep besides variables, and gives all ranks the root's."""

from __future__ import annotations

import hashlib
import warnings

import numpy as np

from smddp_tf._src.collectives.objects import allgather_object, broadcast_object
from smddp_tf._src.gradients.equality import differences
from smddp_tf._src.job import basics
from smddp_tf._src.job.process_sets import global_process_set
from smddp_tf._src.state import configuration, kinds, traces
from smddp_tf._src.state.held import digest
from smddp_tf.errors import RanksDifferError


def _identity(variable) -> int:
    return id(getattr(variable, "_value", variable))


def name_of(layer) -> str:
    """What messages call it: "StringLookup 'words'"; tf_keras's FeatureSpace has no name."""
    name = getattr(layer, "name", None)
    return f"{type(layer).__name__} {name!r}" if name else type(layer).__name__


def layers_of(model, local=frozenset()) -> list:
    """A model or layer, and the layers in it, each once.

    Args:
      model: of any Keras.
      local: identities of variables that may differ. Layers that have no others are left out.
    """
    found = {id(layer): layer for layer in model._flatten_layers(include_self=True)}

    def is_local(layer):
        variables = getattr(layer, "weights", [])
        return bool(variables) and all(_identity(variable) in local for variable in variables)

    return [layer for layer in found.values() if not (local and is_local(layer))]


def refresh(layers) -> list:
    """Computes what follows from variables; returns the layers where that is not what it was."""
    stateful = [(layer, kinds.kind_of(layer)) for layer in layers]
    return [layer for layer, kind in stateful if kind is not None and kind.refresh(layer)]


class _Stateful:
    """The layers that keep something, with a key that is the same on all ranks."""

    def __init__(self, layers):
        some = [(layer, kinds.kind_of(layer)) for layer in layers]
        some = [(layer, kind) for layer, kind in some if kind is not None]
        self.layers = {
            f"layer {i} {type(layer).__name__}": (layer, kind)
            for i, (layer, kind) in enumerate(some)
        }

    def states(self) -> dict:
        """Key -> state of each layer."""
        return {key: kind.capture(layer) for key, (layer, kind) in self.layers.items()}

    def problems(self, states: dict) -> list:
        """Why layers cannot take these."""
        if list(states) != list(self.layers):
            return [f"the model has {list(self.layers)}, but {list(states)} on the root"]
        found = [(one, kind.problem(one, states[key])) for key, (one, kind) in self.layers.items()]
        return [f"{name_of(one)} {text}" for one, text in found if text]

    def apply(self, states: dict) -> list:
        """Takes those that differ; returns the layers that changed.

        In reverse, as a FeatureSpace needs the layers in it.
        """
        changed = []
        for key, (layer, kind) in reversed(self.layers.items()):
            own = kind.capture(layer)
            if states[key] is not None and digest(own) != digest(states[key]):
                kind.apply(layer, states[key])
                changed.append(layer)
        return changed


def tables_of(layers) -> list:
    """[name, digest] of what Keras's preprocessing layers keep that follows from no variable."""
    stateful = [(layer, kinds.kind_of(layer)) for layer in layers]
    return [
        [name_of(layer), digest(kind.capture(layer))]
        for layer, kind in stateful
        if isinstance(kind, (kinds.Lookup, kinds.Discretization, kinds.FeatureSpace))
    ]


def state_of(layers) -> dict:
    """What the layers keep, to be restored."""
    return _Stateful(layers).states()


def restore(layers, states: dict) -> None:
    """Takes back what state_of() returned on these layers, here or in a job before.

    Raises:
      ValueError: the layers are others, or cannot take it.
    """
    stateful = _Stateful(layers)
    problems = stateful.problems(states)
    if problems:
        raise ValueError(f"the state cannot be restored: {'; '.join(problems)}")
    changed = refresh(layers) + stateful.apply(states)
    traces.forget(changed, _constant(changed, layers))


def _constant(changed, layers) -> list:
    """Those of the changed layers whose state functions hold as a constant, unlike a table.

    Also the layers that call them without their names.
    """

    def is_table(layer):
        return hasattr(layer, "lookup_table") and layer.output_mode != "tf_idf"

    found = [layer for layer in changed if not is_table(layer)]
    inner = [getattr(layer, "_lookup_layer", None) for layer in layers]
    return found + [
        layer
        for layer, lookup in zip(layers, inner, strict=True)
        if any(lookup is one for one in found)
    ]


def _configurations(layers, strict: bool) -> dict:
    """The arguments of the preprocessing layers, or of all others, as entries for differences()."""
    found = {}
    for i, layer in enumerate(layers):
        if configuration.says_what_inputs_mean(layer) == strict:
            for name, text in configuration.of(layer).items():
                label = f"{name} of {name_of(layer)}"
                found[f"configuration {i} {name}"] = (label, text)
    return found


def fingerprint(model, local=frozenset()) -> dict:
    """Configuration and state of all layers, as entries for differences()."""
    layers = layers_of(model, local)
    found = _configurations(layers, True) | _configurations(layers, False)
    for key, (layer, kind) in _Stateful(layers).layers.items():
        state = kind.capture(layer)
        label = f"{kind.title} of {name_of(layer)}"
        described = "nothing" if state is None else f"{kind.describe(state)} ({digest(state)})"
        found[key] = (label, described)
        if isinstance(kind, kinds.Normalization) and state is not None:
            in_use = [np.asarray(layer.mean), np.asarray(layer.variance)]
            found[f"{key} in use"] = (f"{label}, in use,", digest(in_use))
    return found


_REMEDY = "hvd.adapt(layer, data), before the model is made, gives all ranks the root's state"


def _shown(lines) -> str:
    more = [f"and {len(lines) - 20} more"] if len(lines) > 20 else []
    return "\n  ".join(lines[:20] + more)


def _compare_configurations(layers, process_set) -> None:
    """Raises for preprocessing layers, warns for others."""
    lines = differences(_configurations(layers, True), "configuration of inputs", process_set)
    if lines:
        raise RanksDifferError(
            "the ranks' preprocessing layers differ, so they would train on inputs of different "
            f"meaning:\n  {_shown(lines)}\nMake them alike on all ranks; {_REMEDY}"
        )
    lines = differences(_configurations(layers, False), "configuration of layers", process_set)
    if lines:
        warnings.warn(
            "the ranks' layers differ (if a layer is meant to be another one on each rank, make "
            f"its variables local):\n  {_shown(lines)}",
            RuntimeWarning,
            stacklevel=5,
        )


def _require_no_problems(problems: list, name: str, process_set) -> None:
    """Raises on all ranks if a rank has problems."""
    of_all = allgather_object((basics.rank(), problems), name=name, process_set=process_set)
    lines = [f"rank {rank}: {problem}" for rank, some in of_all for problem in some]
    if lines:
        raise RanksDifferError(
            "layers cannot take the state of the root, so the ranks would train on inputs of "
            f"different meaning:\n  {_shown(lines)}\nAdapt them alike on all ranks; {_REMEDY}"
        )


def send(layers, root_rank: int, process_set=global_process_set, compared=True) -> None:
    """Gives all ranks the root's state of layers, and compares the layers' configurations.

    Collective. If nothing differs it costs one allgather of a few bytes. What only follows from
    variables needs a refresh() when these were broadcast after it.

    Args:
      layers: of layers_of(), the same ones on all ranks.
      root_rank: the rank to take the state from, as numbered in the job.
      process_set: the ranks that take part.
      compared: False: whatever the configurations are.

    Raises:
      RanksDifferError: a rank cannot take it, or preprocessing layers were made with different
        arguments; raised on all ranks.
    """
    if process_set.size() == 1:
        refresh(layers)
        return
    stale, stateful = refresh(layers), _Stateful(layers)
    states = stateful.states()
    configured = [_configurations(layers, strict) for strict in (True, False)] if compared else []
    texts = [[(key, text) for key, (_, text) in entries.items()] for entries in configured]
    of_all = allgather_object(
        (bool(stale), *(hash_of(one) for one in (texts, digest(states)))),
        name="state of layers",
        process_set=process_set,
    )
    if len({config for _, config, _ in of_all}) > 1:
        _compare_configurations(layers, process_set)
    changed, everywhere = stale, list(stale)
    if len({state for _, _, state in of_all}) > 1:
        roots = broadcast_object(
            states, root_rank, name="state of layers of the root", process_set=process_set
        )
        _require_no_problems(stateful.problems(roots), "state of layers, taken", process_set)
        changed = changed + stateful.apply(roots)
        everywhere = [layer for layer, _ in stateful.layers.values()]
    elif any(one for one, _, _ in of_all):
        everywhere = [layer for layer, _ in stateful.layers.values()]
    traces.forget(everywhere, _constant(changed, layers))


def hash_of(value) -> str:
    """A short hash of what repr() says of a value."""
    return hashlib.blake2b(repr(value).encode(), digest_size=16).hexdigest()
