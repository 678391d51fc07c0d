"""What a layer was made with, as texts to compare between ranks."""

from __future__ import annotations

import re

import numpy as np

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
    if hasattr(value, "get_config"):
        return f"{type(value).__name__} {_plain(value.get_config())}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return np.asarray(value).tolist()
    if callable(value):
        return getattr(value, "__qualname__", type(value).__name__)
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


def of(layer) -> dict:
    """The class and the arguments of a layer: name -> text."""
    values = {"class": type(layer).__name__}
    for key, value in _config(layer).items():
        if key not in _LEFT_OUT and not hasattr(value, "_flatten_layers"):
            values[key] = str(_plain(value))
    return values


def says_what_inputs_mean(layer) -> bool:
    """Whether it is one of Keras's preprocessing layers, other than random ones.

    With other arguments they give the same input another meaning, so no rank could use the weights
    that the ranks train together.
    """
    for kind in type(layer).__mro__:
        if ".layers.preprocessing." in kind.__module__ and "keras" in kind.__module__:
            return not type(layer).__name__.startswith("Random")
    return False
