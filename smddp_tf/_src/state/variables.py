"""broadcast_() and broadcast_variables() of variables, and of models with all their state."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Iterable
from typing import Any

from smddp_tf._src.collectives import variables as core
from smddp_tf._src.collectives.checks import check_root
from smddp_tf._src.collectives.variables import is_movable, is_seed
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.graph.order import in_session
from smddp_tf._src.job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf._src.state import share, traces
from smddp_tf._src.types import Variable

tf = tensorflow()


def variables_only(variables: Iterable[Any]) -> list[Variable]:
    """Without the handlers that tf_keras and Keras 2 count among the weights, of vocabularies."""
    return [one for one in variables if hasattr(type(one), "assign")]


def _tf_variables_in(value: Any) -> Iterable[Variable]:
    """TensorFlow's own variables in an attribute's value; Keras's layers are not looked into."""
    if isinstance(value, tf.Variable):
        yield value
    elif isinstance(value, tf.Module):
        yield from variables_only(value.variables)
    elif isinstance(value, tf.random.Generator):
        yield value.state
    elif isinstance(value, (list, tuple, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tf_variables_in(one)


def untracked_variables(model: Any) -> list[Variable]:
    """The variables among the attributes of the model and its layers that Keras does not count.

    Of Keras 3 they are tf.Variables of any kind, of tf_keras the states of tf.random.Generators.
    """
    keep = is_seed if isinstance(model, tf.Module) else is_movable
    layers = model._flatten_layers(include_self=True)
    found = [one for layer in layers for one in _tf_variables_in(list(vars(layer).values()))]
    return [one for one in found if keep(one)]


def _is_model(value: Any) -> bool:
    return hasattr(type(value), "_flatten_layers")


def _model_in(value: Any) -> Any:
    """A model or layer that is sent with its state: what was given, or the layer of a vocabulary.

    model.variables of tf_keras and Keras 2 has such vocabularies, as handlers.
    """
    if _is_model(value):
        return value
    layer = getattr(value, "_layer", None)
    return layer if not hasattr(type(value), "assign") and _is_model(layer) else None


def _expanded(given: Any) -> tuple[Any, ...]:
    """The variables that were given, with those of models in place of these; and the models.

    The variables' list is a function's, since state that is sent first may replace some.
    """
    if _is_model(given):
        given = [given]
    if not isinstance(given, (list, tuple)):
        return (lambda: given), []
    models = [model for model in map(_model_in, given) if model is not None]
    if not models:
        return (lambda: given), []

    def variables() -> list[Variable]:
        found = []
        for one in given:
            model = _model_in(one)
            if model is None:
                found.append(one)
            elif model is one:
                found += [*variables_only(one.variables), *untracked_variables(one)]
        return list({id(getattr(v, "_value", v)): v for v in found}.values())

    return variables, models


def _normalizations(variables: Any) -> list[Any]:
    """The Normalization layers of these variables, of whichever Kerases are loaded."""
    names = {(getattr(v, "name", "") or "").split("/")[-1].split(":")[0] for v in variables}
    loaded = [sys.modules[name] for name in ("keras", "tf_keras") if name in sys.modules]
    known = [getattr(getattr(one, "layers", None), "Normalization", None) for one in loaded]
    kinds = tuple(kind for kind in known if kind is not None)
    if not kinds or not {"mean", "variance"} & names:
        return []
    mine = {id(getattr(v, "_value", v)) for v in variables}
    # A variable does not know its layer.
    layers = [one for one in gc.get_objects() if issubclass(type(one), kinds)]
    means = [(layer, getattr(layer, "adapt_mean", None)) for layer in layers]
    return [layer for layer, mean in means if id(getattr(mean, "_value", mean)) in mine]


def _refresh_owners(variables: Any) -> None:
    """Refreshes the layers that keep something computed from variables that were broadcast."""
    if in_session():
        return
    layers = _normalizations(variables)
    if layers and not tf.executing_eagerly():
        names = ", ".join(layer.name for layer in layers)
        warnings.warn(
            f"{names} keeps a mean and a variance that no broadcast in a tf.function can change: "
            "call broadcast_variables() outside of it, before it is traced, or hvd.adapt(layer, "
            "data) instead of layer.adapt()",
            RuntimeWarning,
            stacklevel=4,
        )
        return
    changed = share.refresh(layers)
    traces.forget(changed, changed)


def _sent_first(models: list[Any], root_rank: int, process_set: ProcessSet) -> list[Any]:
    """Sends what the models keep besides variables; returns their layers."""
    check_process_set(process_set)
    if models and not tf.executing_eagerly():
        raise RuntimeError(
            "a model's vocabularies and other state are sent when broadcast_variables() is "
            "called; call it outside of tf.function"
        )
    layers = [layer for model in models for layer in share.layers_of(model)]
    if models:
        share.send(layers, check_root(root_rank, process_set), process_set)
    return layers


def broadcast_(
    variables: Iterable[Variable],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Variable]:
    """Assigns the root's values to the variables of every rank, in place.

    The states of random generators (Keras 3's SeedGenerator, as in dropout, and
    tf.random.Generator) are derived from the root's value and the rank, so that each rank draws
    different numbers. A Keras Normalization layer whose variables are among them is made to use
    the new ones.

    Args:
      variables: tf.Variables or Keras variables, the same ones in the same order on all ranks, of
        allreduce()'s dtypes, bool, int16, uint16, uint32, uint64, int4, uint4, complex64,
        complex128, float8_e4m3fn, float8_e5m2, qint8, quint8 or qint32; eagerly strings too.
        Also Keras models or layers, alone or in the list: their variables, and what they keep
        besides (vocabularies, boundaries); the arguments of their layers are compared.
      root_rank: the rank to broadcast from, as numbered in the job, not in the set.
      name: identifies the operation in messages; must be the same on all ranks.
      process_set: the ranks that take part; must include this rank.

    Returns:
      The list of variables. Inside a tf.function they are assigned when the function runs. In a TF1
      graph it is a list of tensors instead: a session that runs them assigns the variables.

    Raises:
      ValueError: root_rank is not in the set.
      TypeError: not a list of variables, or a variable has a dtype that cannot be sent.
      RuntimeError: a model was given inside a tf.function.
      smddp_tf.errors.RanksDifferError: a rank's layers cannot take the root's state, or were made
        with other arguments than the root's.
      tf.errors.FailedPreconditionError and others: same as allreduce().

    Examples:
      >>> counter = tf.Variable(hvd.rank())
      >>> variables = hvd.broadcast_([counter], root_rank=0)
      >>> int(counter)
      0
    """
    listed, models = _expanded(variables)
    layers = _sent_first(models, root_rank, process_set)
    found = core.checked(listed())
    assigned = core.broadcast_(found, root_rank, name, process_set)
    share.refresh(layers)
    _refresh_owners(found)
    return assigned


def broadcast_variables(
    variables: Iterable[Variable],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Assigns the root's values to the variables of every rank; see broadcast_().

    ``broadcast_variables([model, *optimizer.variables], root_rank=0)`` gives all ranks the root's
    model with what is no variable: vocabularies of lookups, boundaries, means.

    Works eagerly and inside tf.function; in a TF1 graph it returns the op that a session has to
    run. inplace is ignored, accepted for compatibility: variables are always assigned in place.
    Warns if there are none.

    Examples:
      >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
      >>> model.build([None, 2])
      >>> optimizer = tf.keras.optimizers.Adam()
      >>> optimizer.build(model.trainable_variables)
      >>> _ = hvd.broadcast_variables([model, *optimizer.variables], root_rank=0)
    """
    del inplace
    listed, models = _expanded(variables)
    layers = _sent_first(models, root_rank, process_set)
    found = core.checked(listed())
    assigned = core.broadcast_variables(found, root_rank, process_set)
    share.refresh(layers)
    _refresh_owners(found)
    return assigned
