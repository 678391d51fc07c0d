"""horovod.tensorflow.util: the helpers that scripts and their tests touch."""

import functools

import tensorflow as tf


def _executing_eagerly() -> bool:
    """Whether ops run as they are called."""
    return tf.executing_eagerly()


def _cache(function):
    """Remembers results by the arguments' identity or value."""
    return functools.lru_cache(maxsize=None)(function)


def _make_subgraph(function):
    """A tf.function."""
    return tf.function(function)


def vars_to_refs(variables) -> tuple:
    """Hashable references to variables."""
    return tuple(variable.ref() for variable in variables)


def refs_to_vars(refs) -> list:
    """The variables again."""
    return [ref.deref() for ref in refs]
