"""TensorFlow, as the rest of the package imports it."""

import functools


def tensorflow():
    """The tensorflow module, or an error that says what to install."""
    try:
        import tensorflow as tf
    except ImportError as error:
        raise ImportError(
            "smddp_tf's collectives need TensorFlow, which cannot be imported here; install "
            "smddp_tf[cpu] or smddp_tf[gpu], or TensorFlow 2.15 to 2.21 in any other way"
        ) from error
    _spare_autograph()
    return tf


@functools.cache
def _spare_autograph() -> None:
    """Keeps AutoGraph from rewriting this package, which has no Python control flow on tensors.

    Rewriting it takes seconds in the first call of a step. tf.autograph.experimental.do_not_convert
    would do it for one function each, and cost a call more in eager mode. Where TensorFlow has no
    such list any more, the first call is slow and nothing else changes.
    """
    try:
        from tensorflow.python.autograph.core import config
        from tensorflow.python.autograph.core.config_lib import DoNotConvert
    except ImportError:
        return
    config.CONVERSION_RULES = (DoNotConvert("smddp_tf"), *config.CONVERSION_RULES)
