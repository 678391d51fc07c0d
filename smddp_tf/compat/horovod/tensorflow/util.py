"""horovod.tensorflow.util: the helpers that scripts and their tests use."""

import functools

import tensorflow as tf


def _executing_eagerly() -> bool:
    """Whether execution is eager."""
    return tf.executing_eagerly()


def _cache(function):
    """Memoizes a function."""
    return functools.lru_cache(maxsize=None)(function)


def _make_subgraph(function):
    """Wraps a function in tf.function."""
    return tf.function(function)


def vars_to_refs(variables) -> tuple:
    """Hashable references to variables."""
    return tuple(variable.ref() for variable in variables)


def refs_to_vars(refs) -> list:
    """Dereferences what vars_to_refs() returned."""
    return [ref.deref() for ref in refs]


def says_horovod(function, optimizer_of=lambda result: result):
    """Lets the optimizers that a function wraps say that they are Horovod's.

    Libraries ask their __module__, to wrap those of a user only once: Merlin Models does, and would
    multiply the learning rate by size() again. It is an attribute of the optimizer: its class, and
    so what is saved, stays Keras's.
    """

    @functools.wraps(function)
    def wrapping(*args, **kwargs):
        result = function(*args, **kwargs)
        optimizer = optimizer_of(result)
        if optimizer is not None:
            optimizer.__module__ = "horovod._keras"
        return result

    return wrapping
