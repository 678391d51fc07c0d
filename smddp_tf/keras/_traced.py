"""Finds functions traced with an optimizer before it was wrapped: they reduce no gradients."""

import gc
import warnings

from smddp_tf._src.graph.framework import tensorflow
from smddp_tf.keras import _distribution

tf = tensorflow()

from tensorflow.python.framework.func_graph import FuncGraph  # noqa: E402


def _is_optimizer(value, optimizer) -> bool:
    if value is optimizer:
        return True
    scales = hasattr(type(value), "apply_gradients") and hasattr(value, "inner_optimizer")
    return scales and _distribution.innermost(value) is optimizer


def _models_that_traced(objects, optimizer) -> list:
    """Models that use this optimizer and already have a train function."""
    return [
        model
        for model in objects
        if hasattr(type(model), "make_train_function")
        and getattr(model, "train_function", None) is not None
        and any(_is_optimizer(value, optimizer) for value in list(vars(model).values()))
    ]


def _functions_that_use(objects, variable) -> list:
    """Names of the traced functions that capture a variable, without Keras's update functions."""
    handle = getattr(variable, "_value", variable).handle
    return sorted(
        {
            graph.name
            for graph in objects
            if issubclass(type(graph), FuncGraph)
            and "update_step" not in graph.name
            and any(outside is handle for outside, _ in graph.captures)
        }
    )


def forget(optimizer) -> None:
    """Makes models that trained with the optimizer retrace, and warns about other functions.

    Costs nothing for an optimizer that has not taken a step yet.
    """
    iterations = getattr(optimizer, "_iterations", None)
    if iterations is None or not tf.executing_eagerly() or not int(iterations.numpy()):
        return
    objects = gc.get_objects()
    models = _models_that_traced(objects, optimizer)
    for model in models:
        model.train_function = None  # the next fit() traces a new one
    functions = [] if models else _functions_that_use(objects, iterations)
    if functions:
        warnings.warn(
            f"the optimizer was wrapped after {', '.join(functions)} had been traced with it. A "
            "tf.function keeps what it traced, so it goes on with local gradients and the ranks' "
            "weights drift apart: wrap the optimizer before its first step, or make the "
            "tf.function anew",
            RuntimeWarning,
            stacklevel=4,
        )
