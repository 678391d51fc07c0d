"""shard(): splits data among the ranks so that all take the same number of steps."""

from __future__ import annotations

import inspect
import numbers
from typing import Any

import numpy as np

from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf.keras import _order, _shard_dataset, _shard_sequence

tf = tensorflow()

_UNEVEN = ("drop", "repeat")


def shard(
    data: Any,
    uneven: str = "drop",
    process_set: ProcessSet = global_process_set,
    shuffle: bool = False,
    seed: int = 0,
    buffer_size: int = 10_000,
) -> Any:
    """Returns this rank's shard of the data: elements rank, rank + size, rank + 2 * size, ...

    All ranks get the same number of elements, so with equal batch sizes they take the same number
    of steps. A rank that ran out of data early would leave the others waiting for its gradients.

    All ranks of the process set must call it: it compares, by one small allgather, whether they
    have the same data in the same order. Samples of arrays and of a dataset's tensors are compared,
    and the seeds of its shuffles. If shuffle() is the last transformation, all ranks get the first
    rank's seed. In on_epoch_end() of a PyDataset or Sequence, Python's random and numpy.random give
    the same numbers on all ranks. What Python code yields (Dataset.from_generator) is not compared,
    nor is anything inside tf.function.

    With shuffle=True the elements are reshuffled before each epoch (each pass over the returned
    data), in the same order on all ranks, and then divided. So each element is seen once per epoch,
    but not always by the same rank. All ranks must make the same passes: a rank that iterates once
    more than the others, say to inspect an element, stays an epoch ahead.

    Args:
      data: the same on all ranks, in the same order. A tf.data.Dataset of elements (shard it before
        batch()); a keras.utils.PyDataset or Sequence, whose batches are divided; an array, tensor,
        or list of numbers or strings, or a nest of them with equal first dimensions, in which None
        stays None.
      uneven: how to handle a number of elements that is not divisible by size: "drop" the
        remainder, or "repeat" elements from the beginning.
      process_set: the ranks to divide the data among.
      shuffle: reshuffle and divide the elements before each epoch.
      seed: the seed of the shuffle, >= 0; the same on all ranks.
      buffer_size: the size of the shuffle buffer of a tf.data.Dataset, in elements, same as for
        its shuffle().

    Returns:
      A tf.data.Dataset for a tf.data.Dataset; a PyDataset or Sequence for one of those; for arrays
      the nest of this rank's parts (numpy arrays are views, unless elements are repeated), or with
      shuffle=True an unbatched tf.data.Dataset.

    Raises:
      ValueError: uneven or seed is invalid, first dimensions differ, there are too few elements
        to give each rank one, or the ranks have different data or orders (raised on all ranks).
      TypeError: data of a kind that cannot be divided, such as a Python generator.

    Examples:
      >>> x, y = hvd.shard((np.zeros([8, 2]), np.zeros([8])))
      >>> len(x) == len(y) == 8 // hvd.size()
      True
      >>> data = hvd.shard(tf.data.Dataset.range(8), shuffle=True, seed=1).batch(2)
    """
    if uneven not in _UNEVEN:
        raise ValueError(f"uneven={uneven!r} is unknown; use one of {', '.join(_UNEVEN)}")
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral) or seed < 0:
        raise ValueError(f"seed={seed!r} is not an integer >= 0; give all ranks the same one")
    check_process_set(process_set)

    part = _shard_dataset.Part(process_set.size(), process_set.rank(), uneven)
    arguments = {"uneven": uneven, "shuffle": str(bool(shuffle)), "seed": int(seed)}
    if isinstance(data, tf.data.Dataset):
        if part.size > 1:
            _shard_dataset.warn_if_unordered(data)
        data = _shard_dataset.in_one_order(data, arguments, process_set)
        if not shuffle:
            return _shard_dataset.divide(data, part)
        return _shard_dataset.divide_shuffled(data, part, int(seed), buffer_size)
    if isinstance(data, _shard_sequence.SEQUENCE):
        agreed = _shard_sequence.in_one_order(data, arguments, process_set)
        return _shard_sequence.ShardedSequence(data, part, shuffle, int(seed), agreed)

    if inspect.isgenerator(data) or inspect.isgeneratorfunction(data) or hasattr(data, "__next__"):
        raise TypeError(
            f"a {type(data).__name__} can be read only once and has no length, so it cannot be "
            "divided; give tf.data.Dataset.from_generator(function, output_signature=...) or a "
            "keras.utils.PyDataset"
        )

    nest, leaves = nest_and_leaves(data)
    count = _count_of(leaves)
    _, lines = _order.agree(
        {**arguments, **_order.of_arrays(leaves)}, "shard of arrays", process_set
    )
    _order.refuse(lines, "hvd.shard")
    part.check(count)
    if shuffle:
        return _shard_dataset.shuffled_arrays(nest, leaves, count, part, int(seed))
    return _divide_arrays(nest, count, part)


def _is_column(value: Any) -> bool:
    """Whether this is a list of elements, as opposed to a nest of arrays."""
    simple = (numbers.Number, str, bytes, np.generic)
    return (
        isinstance(value, (list, tuple))
        and bool(value)
        and all(isinstance(one, simple) for one in value)
    )


def _nest_of(data: Any) -> Any:
    """Converts the data's leaves, including lists of numbers or strings, to arrays or tensors."""
    if data is None or tf.is_tensor(data):
        return data
    if _is_column(data):
        return np.asarray(data)
    if isinstance(data, dict):
        return type(data)((key, _nest_of(value)) for key, value in data.items())
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*map(_nest_of, data))
    if isinstance(data, list) and any(_is_column(one) for one in data):
        raise TypeError(
            "a list of lists may mean rows or columns; give np.asarray(...) for rows, or a tuple "
            "of arrays for columns"
        )
    if isinstance(data, (list, tuple)):
        return type(data)(map(_nest_of, data))
    return np.asarray(data)


def nest_and_leaves(data: Any) -> tuple[Any, ...]:
    """The data with arrays or tensors as leaves, and these in order, without None."""
    nest = _nest_of(data)
    return nest, [leaf for leaf in tf.nest.flatten(nest) if leaf is not None]


def leaves_of(data: Any) -> list[Any]:
    """The arrays and tensors that the data consist of."""
    return nest_and_leaves(data)[1]


def _count_of(leaves: Any) -> int:
    """The common first dimension of the leaves.

    Raises:
      ValueError: there are no leaves, or their first dimensions differ.
      TypeError: a leaf is a scalar or sparse.
    """
    for leaf in leaves:
        if isinstance(leaf, tf.SparseTensor) or len(leaf.shape) == 0:
            shown = type(leaf.item() if isinstance(leaf, np.ndarray) else leaf).__name__
            raise TypeError(
                f"a {shown} cannot be divided; hvd.shard takes arrays, dense and ragged tensors, "
                "lists of numbers or strings, nests of these, a tf.data.Dataset, or a "
                "keras.utils.PyDataset"
            )
    counts = {int(leaf.shape[0]) for leaf in leaves}
    if len(counts) != 1:
        raise ValueError(f"the first dimensions differ: {sorted(counts)}" if counts else "no data")
    return counts.pop()


def _divide_arrays(nest: Any, count: int, part: Any) -> Any:
    total = part.total(count)

    def own(leaf: Any) -> Any:
        if leaf is None:
            return None
        if tf.is_tensor(leaf):
            return tf.gather(leaf, np.arange(part.rank, total, part.size) % count)
        if total <= count:
            return leaf[part.rank : total : part.size]
        return leaf[np.arange(part.rank, total, part.size) % count]

    return tf.nest.pack_sequence_as(nest, [own(leaf) for leaf in tf.nest.flatten(nest)])


def count_of(data: Any) -> int:
    """The number of elements of arrays. Raises the same errors as shard()."""
    return _count_of(leaves_of(data))


def rows_of(data: Any, start: int, stop: int) -> Any:
    """A slice of consecutive elements of each array."""
    return tf.nest.map_structure(
        lambda leaf: leaf if leaf is None else leaf[start:stop], _nest_of(data)
    )
