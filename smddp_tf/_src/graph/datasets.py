"""Collectives in functions of tf.data, and the seeds by which datasets order their elements.

Collectives are refused in functions that tf.data runs for several elements at the same time. Their
order is then another one on each rank, so ranks would combine different elements. A function that
contains a collective, or calls one that does, captures order.py's constant, by which it is known
for sure. Python code in tf.py_function is not in the graph: what it does at the same time under one
name is an error of the engine (channel.cc).
"""

import contextlib
import functools
import importlib
import random
from typing import Any

from smddp_tf._src.graph import order
from smddp_tf._src.graph.framework import tensorflow

tf = tensorflow()

_DATA = "tensorflow.python.data"
# Module, class, and what the script calls; none is part of TensorFlow's interface.
_PARALLEL = (
    ("ops.map_op", "_ParallelMapDataset", "map(num_parallel_calls=...)"),
    ("ops.interleave_op", "_ParallelInterleaveDataset", "interleave(num_parallel_calls=...)"),
    ("ops.readers", "ParallelInterleaveDataset", "apply(parallel_interleave(...))"),
    ("experimental.ops.batching", "_MapAndBatchDataset", "apply(map_and_batch(...))"),
)


def _runs_several(dataset) -> bool:
    """Whether the dataset may call its function for several elements at once."""
    calls = tf.get_static_value(getattr(dataset, "_num_parallel_calls", None))
    return calls is None or int(calls) != 1 or "Interleave" in type(dataset).__name__


def _refusing(init, what: str):
    @functools.wraps(init)
    def checked_init(self, *args, **kwargs):
        init(self, *args, **kwargs)
        function = getattr(getattr(self, "_map_func", None), "function", None)
        if order.touches_collectives(function) and _runs_several(self):
            raise ValueError(
                f"a collective is inside the function of Dataset.{what}, which runs for several "
                "elements at the same time, so that each rank would combine different ones; leave "
                "num_parallel_calls out of the call whose function has the collective"
            )

    return checked_init


def refuse_in_parallel_functions() -> None:
    """Makes the datasets of parallel functions check these.

    A TensorFlow without one of the classes is left as it is.
    """
    for module, name, what in _PARALLEL:
        try:
            kind = getattr(importlib.import_module(f"{_DATA}.{module}"), name)
        except (ImportError, AttributeError):
            continue
        kind.__init__ = _refusing(kind.__init__, what)


_LARGEST_SEED = 2**31 - 1


class _SeedsOfDatasets:
    """Stands in for TensorFlow's module random_seed where datasets get their seeds.

    So they are the same on all ranks, while the seed of TensorFlow's random ops, which else decides
    them too, is another one on each.
    """

    def __init__(self, original) -> None:
        self._original = original
        self._own: int | None = None  # this and the next two: see use()
        self._seed, self._numbers = 0, random.Random(0)
        self._fixed: tuple | None = None  # the seeds of all datasets for a while

    def use(self, own: int, seed: int) -> None:
        """Seeds datasets by `seed` as long as TensorFlow's global seed is `own`."""
        self._own, self._seed, self._numbers = own, seed, random.Random(seed)

    def get_seed(self, op_seed):
        """What random_seed.get_seed() returns: the global seed and that of the dataset."""
        if self._fixed is not None:
            return self._fixed
        seeds = self._original.get_seed(op_seed)
        if self._own is None or seeds[0] != self._own % _LARGEST_SEED:
            return seeds
        if op_seed is None and tf.executing_eagerly():
            op_seed = self._numbers.randint(0, _LARGEST_SEED - 1)
        # In a graph TensorFlow numbers its ops, so that the second is the same on all ranks. It may
        # be a tensor. tf.data itself replaces two zeros, which would mean another seed each time.
        second = seeds[1] if op_seed is None else op_seed % _LARGEST_SEED
        return self._seed % _LARGEST_SEED, second

    @contextlib.contextmanager
    def fixed(self, seeds: tuple):
        """Gives all datasets that are made meanwhile these two seeds."""
        self._fixed = seeds
        try:
            yield
        finally:
            self._fixed = None


@functools.cache
def seeds_of_datasets() -> _SeedsOfDatasets:
    """The one in use; the first call has tf.data ask it."""
    module: Any = importlib.import_module(f"{_DATA}.util.random_seed")
    module.random_seed = _SeedsOfDatasets(module.random_seed)
    return module.random_seed
