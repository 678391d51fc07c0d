"""adapt(): the same vocabularies, means and boundaries on all ranks."""

from __future__ import annotations

import pickle
from typing import Any

from smddp_tf._src.collectives.checks import check_root
from smddp_tf._src.collectives.objects import allgather_object, broadcast_object
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job import basics
from smddp_tf._src.job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf._src.state import held, kinds, share

tf = tensorflow()


def _pickled(value: Any) -> bytes | None:
    try:
        return pickle.dumps(value)
    except Exception:  # whatever a class of the script's says to this
        return None


def _objects_of(layer: Any) -> dict[str, tuple[Any, bytes | None]]:
    """The attributes of a layer of the script's own that are no plain values."""
    if isinstance(kinds.kind_of(layer), kinds.Adapted):
        return {name: (value, _pickled(value)) for name, value in held.others(layer).items()}
    return {}


def _adapted_by_root(layer: Any, data: Any, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """What went wrong, "" if nothing; the objects that adapt() made or changed."""
    before = _objects_of(layer)
    try:
        layer.adapt(data, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}", {}
    changed = {}
    for name, (value, pickled) in _objects_of(layer).items():
        old, old_pickled = before.get(name, (None, None))
        if value is old and pickled == old_pickled:
            continue
        if pickled is None:
            kind = type(value).__name__
            return f"it keeps a {kind} in {name!r}, which pickle cannot send to other ranks", {}
        changed[name] = value
    return "", changed


def adapt(
    layer: Any,
    data: Any = None,
    root_rank: int = 0,
    process_set: ProcessSet = global_process_set,
    **options: Any,
) -> Any:
    """layer.adapt(data) on the root; all other ranks take the state that the layer has then.

    The root needs data that stand for all: give it those from before shard(). The other ranks'
    are not read, and may be None. They wait in a collective, so an adapt() that takes longer than
    SMDDP_TIMEOUT_SECONDS (600) fails on them.

    Collective: all ranks must call it. Call it before the layer is used in a model, a dataset or
    a tf.function, where its state may be a constant.

    Args:
      layer: a preprocessing layer of Keras 3, tf_keras or Keras 2 (Normalization, StringLookup,
        IntegerLookup, TextVectorization, Discretization), a FeatureSpace, or a layer of your own
        with adapt(); made with the same arguments on all ranks. Of your own layer's attributes all
        ranks get the variables, numbers, texts, arrays, tensors and lookup tables, containers of
        these, and what else adapt() has changed and pickle can send.
      data: what layer.adapt() takes, on the root.
      root_rank: the rank that adapts, as numbered in the job.
      process_set: the ranks that take part; must include this rank.
      **options: further arguments of layer.adapt(), as batch_size or steps.

    Returns:
      The layer.

    Raises:
      TypeError: it has no adapt(), as a model.
      RuntimeError: adapt() failed on the root, which raises it on all ranks; or called inside a
        tf.function.
      smddp_tf.errors.RanksDifferError: the ranks' layers have different arguments, or one cannot
        take the root's state; raised on all ranks.

    Examples:
      >>> words = hvd.adapt(tf.keras.layers.StringLookup(), np.array(["a", "b", "a"]))
      >>> words.vocabulary_size()  # with the token for unknown words
      3
    """
    check_process_set(process_set)
    root_rank = check_root(root_rank, process_set)
    if not callable(getattr(layer, "adapt", None)) or not hasattr(layer, "_flatten_layers"):
        raise TypeError(
            f"adapt() takes a layer that has adapt(), as Normalization, not {type(layer).__name__}"
            "; of a model give its layer: model.get_layer(name)"
        )
    if not tf.executing_eagerly():
        raise RuntimeError("adapt() reads data when it is called; call it outside of tf.function")

    is_root = basics.rank() == root_rank
    problem, objects = _adapted_by_root(layer, data, options) if is_root else ("", {})
    told = allgather_object((problem, bool(objects)), name="adapt", process_set=process_set)
    if any(problem for problem, _ in told):
        name, problems = share.name_of(layer), "".join(problem for problem, _ in told)
        raise RuntimeError(f"adapt() of {name} failed on rank {root_rank}: {problems}")
    # Not the encoders of a FeatureSpace, which the other ranks do not have yet.
    preprocessors = getattr(layer, "preprocessors", None)
    if isinstance(preprocessors, dict):
        layers = [layer, *(one for each in preprocessors.values() for one in share.layers_of(each))]
    else:
        layers = share.layers_of(layer)
    share.send(layers, root_rank, process_set)
    if any(objects for _, objects in told):
        objects = broadcast_object(objects, root_rank, name="adapted", process_set=process_set)
        for name, value in objects.items() if not is_root else ():
            setattr(layer, name, value)
    return layer
