"""What a layer was made with, as texts to compare between ranks.

That is its arguments, the arrays, tensors and tables that a layer of the script's own keeps, and
what a Lambda's function takes from the script around it.
"""

from __future__ import annotations

import inspect
import re

import numpy as np

from smddp_tf._src.state import held

# Names and seeds may differ by rank, and batch sizes; contents are compared as state.
_LEFT_OUT = {
    *("name", "seed", "batch_shape", "batch_input_shape", "build_config", "compile_config"),
    *("module", "registered_name", "vocabulary", "vocabulary_size", "idf_weights"),
    *("has_input_vocabulary", "bin_boundaries", "trainable"),
}


def _plain(value):
    """A value without names, seeds, code and addresses in memory."""
    if isinstance(value, dict):
        if "__lambda__" in str(value.get("class_name", "")):
            return "a lambda"
        if str(value.get("class_name", "")).endswith("Policy"):  # of dtypes, which are names
            return str(value.get("config"))
        return {key: _plain(one) for key, one in sorted(value.items()) if key not in _LEFT_OUT}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    kind = type(value)
    if hasattr(kind, "get_config"):
        return f"{kind.__name__} {_plain(value.get_config())}"
    if hasattr(kind, "shape") and hasattr(kind, "dtype"):
        return np.asarray(value).tolist()
    if inspect.isroutine(value) or isinstance(value, type):
        return value.__qualname__
    if callable(value):
        return held.own(value).get("__qualname__", kind.__name__)  # a decorator has a function's
    return value if isinstance(value, str) else re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _config(layer) -> dict:
    if hasattr(layer, "layers") or hasattr(layer, "one_hot_encoders"):
        return {}  # it lists its layers, by their names; they are compared themselves
    try:
        config = layer.get_config()
    except Exception:  # the script's own; Keras asks for it only to save, and we only to compare
        return {}
    if not isinstance(config, dict):
        return {}
    lambdas = str(config.get("function_type", "")) == "lambda"  # code, as Keras 2 has it
    return {key: v for key, v in config.items() if not (lambdas and key == "function")}


def _plain_or_none(value):
    try:
        return held.plain(value)
    except held.NotPlain:
        return None


def _around(function) -> dict:
    """Name -> value of variables around a function, of its module, and of arguments' defaults."""
    try:
        around = inspect.getclosurevars(function)
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C, or a variable around it has no value yet
        return {}
    defaults = {k: one.default for k, one in parameters.items() if one.default is not one.empty}
    return {**around.globals, **around.nonlocals, **defaults}


def _captured(function, known=()) -> dict:
    """The values that a function has besides its arguments, and those of functions that it calls.

    Name -> text. Of other modules' functions nothing is looked at.
    """
    texts: dict[str, str] = {}
    for name, value in _around(function).items():
        if inspect.isfunction(value):
            if value.__module__ == function.__module__ and value not in known:
                texts |= _captured(value, (*known, function))
            continue
        try:
            texts[f"{name} in {function.__name__}"] = held.described(held.plain(value))
        except held.NotPlain:
            continue
    return texts


def _held(layer) -> dict:
    """The data of a layer that has no adapt(), by which it would be state: name -> text."""
    if hasattr(layer, "adapt") or not hasattr(layer, "_flatten_layers"):
        return {}
    if type(layer).__module__.split(".")[0] in ("keras", "tf_keras"):
        return {}
    some = {k: v for k, v in held.capture(layer).items() if "seed" not in k and held.is_data(v)}
    return {name: held.described(value) for name, value in some.items()}


def of(layer) -> dict:
    """The class and the arguments of a layer: name -> text."""
    values = {"class": type(layer).__name__}
    for key, value in _config(layer).items():
        if key not in _LEFT_OUT and not hasattr(type(value), "_flatten_layers"):
            values[key] = str(_plain(value))
    function = getattr(layer, "function", None)
    captured = _captured(function) if inspect.isfunction(function) else {}
    return _held(layer) | captured | values


def says_what_inputs_mean(layer) -> bool:
    """Whether it is one of Keras's preprocessing layers, other than random ones.

    With other arguments they give the same input another meaning, so no rank could use the weights
    that the ranks train together.
    """
    for kind in type(layer).__mro__:
        if ".layers.preprocessing." in kind.__module__ and "keras" in kind.__module__:
            return not type(layer).__name__.startswith("Random")
    return False
