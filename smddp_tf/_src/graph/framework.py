"""Imports TensorFlow, and what needs it, for the rest of the package."""

import functools
import importlib
from typing import Any


def tensorflow() -> Any:
    """Returns the tensorflow module, or raises an ImportError that says what to install."""
    try:
        import tensorflow as tf
    except ImportError as error:
        raise ImportError(
            "smddp_tf's collectives need TensorFlow, which cannot be imported here; install "
            "smddp_tf[cpu] or smddp_tf[gpu], or TensorFlow 2.15 to 2.21 in any other way; for "
            "PyTorch import smddp_tf.torch"
        ) from error
    _spare_autograph()
    return tf


def ops_of(compressor: str):
    """The module of a compressor's ops, imported at the first call.

    Users name compressors before TensorFlow is imported.
    """
    return importlib.import_module(f"smddp_tf._src.graph.ops.{compressor}")


@functools.cache
def _spare_autograph() -> None:
    """Excludes this package from AutoGraph: it has no Python control flow on tensors.

    Conversion would add seconds to the first call of a step. do_not_convert works per function and
    costs an extra call in eager mode. If a TensorFlow lacks this list of rules, the first call is
    slow and nothing else changes.
    """
    try:
        from tensorflow.python.autograph.core import config
        from tensorflow.python.autograph.core.config_lib import DoNotConvert
    except ImportError:
        return
    config.CONVERSION_RULES = (DoNotConvert("smddp_tf"), *config.CONVERSION_RULES)
