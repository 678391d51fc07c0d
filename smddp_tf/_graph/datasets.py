"""Refuses collectives in functions that tf.data runs for several elements at the same time.

Their order is then another one on each rank, so ranks would combine different elements. A function
that contains a collective, or calls one that does, captures order.py's constant, by which it is
known for sure. Python code in tf.py_function is not in the graph: what it does at the same time
under one name is an error of the engine (channel.cc).
"""

import functools
import importlib

from smddp_tf._graph import order
from smddp_tf._graph.framework import tensorflow

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
