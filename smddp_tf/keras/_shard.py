"""shard(): this rank's part of the data, with the same number of steps on all ranks."""

from __future__ import annotations

import inspect
import numbers
from typing import Any

import numpy as np

from smddp_tf._graph.framework import tensorflow
from smddp_tf._job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf.keras import _shard_dataset, _shard_sequence

tf = tensorflow()

_UNEVEN = ("drop", "repeat")


def shard(
    data: Any,
    uneven: str = "drop",
    process_set: ProcessSet = global_process_set,
    shuffle: bool = False,
    seed: int = 0,
    buffer_size: int = 10_000,
):
    """This rank's part of a dataset or of arrays: elements rank, rank + size, rank + 2 size, ...

    All ranks get the same number of elements, so with equal batch sizes they take the same number
    of steps; a rank that ran out of data would leave the others waiting for its gradients.

    With shuffle=True the elements are put in a new order before each epoch (each pass over what is
    returned), the same on all ranks, and then divided; so each element is seen once an epoch, by
    another rank each time. All ranks must make the same passes: one that takes a pass alone, to
    look at an element, is an epoch ahead from then on.

    Args:
      data: the same on all ranks, in the same order. A tf.data.Dataset of elements (divide before
        batch()); a keras.utils.PyDataset or Sequence, whose batches are divided; an array, tensor,
        or list of numbers or strings, or a nest of them with equal first dimensions, where None
        stays None.
      uneven: what happens when size does not divide the number of elements: "drop" the rest, or
        "repeat" elements from the beginning.
      process_set: the ranks among which it is divided.
      shuffle: divide the elements anew before each epoch.
      seed: of the order, >= 0; the same on all ranks.
      buffer_size: of a tf.data.Dataset that is shuffled: elements in memory among which the next
        one is chosen, as for its shuffle().

    Returns:
      For a tf.data.Dataset, one; for a PyDataset or Sequence, one; for arrays the nest of this
      rank's parts (numpy arrays are views, unless elements are repeated), or with shuffle=True a
      tf.data.Dataset of elements: batch() it.

    Raises:
      ValueError: uneven or seed is unknown, first dimensions differ, or there is no element for
        each rank.
      TypeError: data that cannot be divided, such as a Python generator.
    """
    if uneven not in _UNEVEN:
        raise ValueError(f"uneven={uneven!r} is unknown; use one of {', '.join(_UNEVEN)}")
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral) or seed < 0:
        raise ValueError(f"seed={seed!r} is no integer >= 0; give all ranks the same one")
    check_process_set(process_set)
    part = _shard_dataset.Part(process_set.size(), process_set.rank(), uneven)
    if isinstance(data, tf.data.Dataset):
        if not shuffle:
            return _shard_dataset.divide(data, part)
        return _shard_dataset.divide_shuffled(data, part, int(seed), buffer_size)
    if isinstance(data, _shard_sequence.SEQUENCE):
        return _shard_sequence.ShardedSequence(data, part, shuffle, int(seed))
    if inspect.isgenerator(data) or inspect.isgeneratorfunction(data) or hasattr(data, "__next__"):
        raise TypeError(
            f"a {type(data).__name__} can be read only once and has no length, so it cannot be "
            "divided; give tf.data.Dataset.from_generator(function, output_signature=...) or a "
            "keras.utils.PyDataset"
        )
    if shuffle:
        nest, leaves = _leaves_of(data)
        count = _count_of(leaves)
        part.check(count)
        return _shard_dataset.shuffled_arrays(nest, leaves, count, part, int(seed))
    return _divide_arrays(data, part)


def _is_column(value) -> bool:
    """Whether this is a list of elements, and not a nest of arrays."""
    simple = (numbers.Number, str, bytes, np.generic)
    return (
        isinstance(value, (list, tuple))
        and bool(value)
        and all(isinstance(one, simple) for one in value)
    )


def _nest_of(data):
    """The data with an array or tensor for each list of numbers or strings."""
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


def _leaves_of(data):
    nest = _nest_of(data)
    return nest, [leaf for leaf in tf.nest.flatten(nest) if leaf is not None]


def _count_of(leaves) -> int:
    """The number of elements.

    Raises:
      ValueError: there is none, or the arrays differ in it.
      TypeError: a leaf has no elements.
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


def _divide_arrays(data, part):
    nest, leaves = _leaves_of(data)
    count = _count_of(leaves)
    part.check(count)
    total = part.total(count)

    def own(leaf):
        if leaf is None:
            return None
        if tf.is_tensor(leaf):
            return tf.gather(leaf, np.arange(part.rank, total, part.size) % count)
        if total <= count:
            return leaf[part.rank : total : part.size]
        return leaf[np.arange(part.rank, total, part.size) % count]

    return tf.nest.pack_sequence_as(nest, [own(leaf) for leaf in tf.nest.flatten(nest)])


def count_of(data) -> int:
    """The number of elements of arrays. Errors as shard()."""
    return _count_of(_leaves_of(data)[1])


def rows_of(data, start: int, stop: int):
    """Consecutive elements of arrays."""
    return tf.nest.map_structure(
        lambda leaf: leaf if leaf is None else leaf[start:stop], _nest_of(data)
    )
