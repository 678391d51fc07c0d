"""shard(): this rank's part of the data, with the same number of steps on all ranks."""

import math

import numpy as np

from smddp_tf import _native, _runtime

tf = _native.tensorflow()

_UNEVEN = ("drop", "repeat")


def shard(data, uneven="drop", process_set=_runtime.global_process_set):
    """This rank's part of a dataset or of arrays: elements rank, rank + size, rank + 2 size, ...

    All ranks get the same number of elements, so with equal batch sizes they take the same number
    of steps; a rank that ran out of data would leave the others waiting for its gradients. Shuffle
    after sharding, or before it with a seed that is the same on all ranks.

    Args:
      data: a tf.data.Dataset, or an array, tensor or nest of them with equal first dimensions. All
        ranks have the same data.
      uneven: what happens when size does not divide the number of elements: "drop" the rest, or
        "repeat" elements from the beginning.
      process_set: the ranks among which it is divided.

    Returns:
      A dataset, or the nest with numpy arrays or tensors in it.

    Raises:
      ValueError: uneven is unknown, or there is no element for each rank.
    """
    if uneven not in _UNEVEN:
        raise ValueError(f"uneven={uneven!r} is unknown; use one of {', '.join(_UNEVEN)}")
    _runtime.check_process_set(process_set)
    size, rank = process_set.size(), process_set.rank()
    if isinstance(data, tf.data.Dataset):
        return _shard_dataset(data, size, rank, uneven)
    return _shard_arrays(data, size, rank, uneven)


def _check_enough(count: int, size: int, uneven: str) -> None:
    if count == 0 or (uneven == "drop" and count < size):
        raise ValueError(
            f"{count} elements cannot be divided among {size} ranks; "
            + ('uneven="repeat" would repeat some' if count else "the data are empty")
        )


def _shard_arrays(data, size: int, rank: int, uneven: str):
    leaves = [leaf if tf.is_tensor(leaf) else np.asarray(leaf) for leaf in tf.nest.flatten(data)]
    counts = {int(leaf.shape[0]) for leaf in leaves}
    if len(counts) != 1:
        raise ValueError(f"the first dimensions differ: {sorted(counts)}")
    count = counts.pop()
    _check_enough(count, size, uneven)
    total = count - count % size if uneven == "drop" else math.ceil(count / size) * size
    indices = np.arange(rank, total, size) % count
    parts = [tf.gather(leaf, indices) if tf.is_tensor(leaf) else leaf[indices] for leaf in leaves]
    return tf.nest.pack_sequence_as(data, parts)


def _shard_dataset(dataset, size: int, rank: int, uneven: str):
    count = int(dataset.cardinality())
    if size == 1 or count == tf.data.INFINITE_CARDINALITY:
        return dataset.shard(size, rank)
    if count == tf.data.UNKNOWN_CARDINALITY:
        return _shard_unknown(dataset, size, rank, uneven)
    _check_enough(count, size, uneven)
    if uneven == "drop":
        return dataset.take(count - count % size).shard(size, rank)
    return dataset.repeat().take(math.ceil(count / size) * size).shard(size, rank)


def _shard_unknown(dataset, size: int, rank: int, uneven: str):
    """Groups of `size` elements; each rank takes one of each. The end is seen when it comes.

    An incomplete last group is dropped, or its elements are dealt out again.
    """

    def own(*window):
        # Each component of an element is a dataset of its own.
        parts = tf.data.Dataset.zip(tuple(tf.nest.flatten(window)))
        parts = parts.repeat() if uneven == "repeat" else parts
        structure = window if len(window) > 1 else window[0]
        one = parts.skip(rank).take(1)
        return one.map(lambda *leaves: tf.nest.pack_sequence_as(structure, leaves))

    return dataset.window(size, drop_remainder=uneven == "drop").flat_map(own)
