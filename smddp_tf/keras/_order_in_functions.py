"""The seeds by which functions of a tf.data pipeline order or choose elements.

A shuffle() may stand in the function of a flat_map() or interleave(), and a filter() may draw
random numbers. Both are nodes of the function's graph. The functions of map() are left out: what
they draw are values of elements, as in augmentation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from smddp_tf._src.graph.framework import tensorflow

tf = tensorflow()

_VALUES_ONLY = ("MapDataset", "MapAndBatchDataset")
_REPLACED = 2**31 - 1


def _makes_values(kind: str) -> bool:
    """Whether a dataset's functions leave number and order of elements as they are."""
    return any(name in kind for name in _VALUES_ONLY) and "FlatMap" not in kind


def _constant(nodes: dict, name: str) -> int | None:
    """The number that a node's input has; None if it is computed from elements."""
    node = nodes.get(name.split(":")[0])
    if node is not None and node.op == "Identity":
        return _constant(nodes, node.input[0])
    if node is not None and node.op == "SelectV2":  # TensorFlow's replacement of two zeros
        return _constant(nodes, node.input[2]) or _REPLACED
    if node is None or node.op != "Const":
        return None
    return int(tf.make_ndarray(node.attr["value"].tensor))


def _shuffle_seeds(nodes: dict, node: Any) -> Any:
    """Those of a shuffle; None if it is random each time."""
    seeds = [_constant(nodes, name) for name in node.input[2:4]]  # after dataset and buffer_size
    if None in seeds:
        return "computed"
    return tuple(seeds) if any(seeds) else None


def _draw_seeds(node: Any) -> Any:
    seeds = node.attr["seed"].i, node.attr["seed2"].i
    return seeds if any(seeds) else None


def _functions(node: Any) -> Iterator[str]:
    """The names of the functions that a node calls."""
    for attribute in node.attr.values():
        if attribute.HasField("func"):
            yield attribute.func.name
        for one in attribute.list.func:
            yield one.name


class Seeds:
    """What all functions of a dataset that order or choose elements have.

    Attributes:
      shuffles: the seeds of shuffles; None for one that is random each time.
      draws: the same of random numbers.
    """

    def __init__(self) -> None:
        self.shuffles: list[Any] = []
        self.draws: list[Any] = []

    def add(self, dataset: Any) -> None:
        """Looks at the functions of one dataset, not at those of its inputs."""
        if _makes_values(type(dataset).__name__):
            return
        for function in dataset._functions():
            graph = function.function.graph.as_graph_def()
            library = {one.signature.name: one.node_def for one in graph.library.function}
            self._visit(graph.node, library)

    def _visit(self, node_list: Any, library: dict) -> None:
        nodes = {node.name: node for node in node_list}
        for node in node_list:
            if "Shuffle" in node.op and "Dataset" in node.op:
                self.shuffles.append(_shuffle_seeds(nodes, node))
            elif "seed2" in node.attr and "Dataset" not in node.op:
                self.draws.append(_draw_seeds(node))
            if not _makes_values(node.op):
                for name in _functions(node):
                    self._visit(library.get(name, ()), library)
