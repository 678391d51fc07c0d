"""Averages that travel while training goes on: begun in one step, and taken in a later one.

A step of a tf.function ends when all its ops have. So a step only hands the tensors to a thread of
Python, whose collectives have names of their own (see `_src/graph/names.py`), and a later step
waits for what the thread has.
"""

import concurrent.futures
import itertools
from typing import Any

import numpy as np

from smddp_tf._src.graph.framework import tensorflow

tf = tensorflow()

_numbers = itertools.count()


class InFlight:
    """The averages of one optimizer that are under way: one for a fragment at most.

    Args:
      name: what the thread is called; the same on all ranks.
      average: average(fragment, tensors) is called in the thread, eagerly; it returns tensors.
    """

    def __init__(self, name: str, average: Any) -> None:
        self._average = average
        # One thread, so that averages are in the same order on all ranks.
        self._thread = concurrent.futures.ThreadPoolExecutor(1, f"{name} {next(_numbers)} ")
        self._pending: dict = {}

    def start(self, fragment: int, tensors: list):
        """Begins an average; returns a tensor that exists when it has begun."""

        def begin(*values):
            # Copies: TensorFlow may use the memory again.
            kept = [np.array(value) for value in values]
            self._pending[fragment] = self._thread.submit(self._run, fragment, kept)
            return np.bool_(True)

        return tf.numpy_function(begin, tensors, tf.bool, stateful=True)

    def _run(self, fragment: int, values: list) -> list:
        return [one.numpy() for one in self._average(fragment, [tf.constant(v) for v in values])]

    def finish(self, fragment: int, like: list):
        """Waits for an average.

        Args:
          fragment: what start() was given.
          like: tensors of its dtypes and shapes.

        Returns:
          Whether there is one, and its tensors. There is none in a process that was started from
          files while one was under way.
        """

        def take():
            pending = self._pending.pop(fragment, None)
            if pending is None:
                return [np.bool_(False)] + [np.zeros(t.shape, t.dtype.as_numpy_dtype) for t in like]
            return [np.bool_(True), *pending.result()]

        dtypes = [tf.bool, *[tensor.dtype for tensor in like]]
        known, *values = tf.numpy_function(take, [], dtypes, stateful=True)
        known.set_shape([])
        for value, tensor in zip(values, like, strict=True):
            value.set_shape(tensor.shape)
        return known, values
