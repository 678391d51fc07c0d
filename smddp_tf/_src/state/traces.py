"""Functions that were traced with a layer's old state, which is constant in them."""

from __future__ import annotations

import gc
import re
import warnings

from smddp_tf._src.graph.framework import tensorflow

tf = tensorflow()

from tensorflow.python.framework.func_graph import FuncGraph  # noqa: E402

_OF_MODELS = ("train_function", "test_function", "predict_function")
# The functions of models, which are made anew; the graph in which tf_keras and Keras 2 make models.
# What layers trace to learn their outputs' shapes is thrown away: a scratch_graph, by its name.
_KNOWN = ("one_step_on_", "multi_step_on_", "run_step", "keras_graph", *_OF_MODELS)


def _models_with(objects, layers) -> list:
    wanted = set(map(id, layers))
    models = [o for o in objects if hasattr(type(o), "make_train_function")]
    return [m for m in models if wanted & {id(layer) for layer in m._flatten_layers()}]


def _make_anew(model) -> None:
    """Has the model trace its functions again, also if fit() has begun."""
    for name in _OF_MODELS:
        if getattr(model, name, None) is None:
            continue
        made = getattr(model, f"make_{name}")(force=True)
        if made is not None:  # Keras 3 assigns it
            setattr(model, name, made)


def _names(layers) -> list:
    """tf_keras's FeatureSpace has none."""
    return sorted({getattr(layer, "name", None) or type(layer).__name__ for layer in layers})


def _functions_with(objects, layers) -> list:
    """Names of other graphs that have operations of these layers."""
    names = "|".join(re.escape(name) for name in _names(layers))
    # Keras 3 enters the scope of a name twice, so TensorFlow gives it a number.
    operation = re.compile(rf"(.*/)?({names})(_1)?/.*")

    def uses(graph):
        return any(operation.fullmatch(op.name) for op in graph.get_operations())

    graphs = [o for o in objects if issubclass(type(o), FuncGraph)]
    others = [g for g in graphs if not g.name.startswith(_KNOWN) and "scratch_graph" not in g.name]
    return sorted({graph.name for graph in others if uses(graph)})


def forget(layers, constant) -> None:
    """Makes the models with these layers retrace, and warns about other functions with them.

    Args:
      layers: those whose state has changed on some rank.
      constant: those of them whose state is a constant in what was traced on this rank.
    """
    if not layers:
        return
    objects = gc.get_objects()
    for model in _models_with(objects, layers):
        _make_anew(model)
    functions = _functions_with(objects, constant) if constant else []
    if functions:
        warnings.warn(
            f"{', '.join(_names(constant))} took the root's state after "
            f"{', '.join(functions)} had been traced with another one, which stays in what was "
            "traced: make that tf.function or dataset anew, or call hvd.adapt(layer, data), or "
            "broadcast, before it is made",
            RuntimeWarning,
            stacklevel=4,
        )
