"""Divides a tf.data.Dataset among ranks, and shuffles it identically on all of them."""

import dataclasses
import math
import warnings

from smddp_tf._src.graph.datasets import seeds_of_datasets
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf.keras import _order

tf = tensorflow()

# Graph-level seed of the shuffling functions. Otherwise TensorFlow would mix in the seed of
# tf.random.set_seed(), which scripts set per rank.
_GRAPH_SEED = 1

# What window() takes as it is. It fails with other elements of several tensors, as extension types.
_IN_WINDOWS = (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)


@dataclasses.dataclass(frozen=True)
class Part:
    """A rank's part of the elements.

    Attributes:
      size: the number of parts.
      rank: the index of this part, from 0.
      uneven: "drop" or "repeat".
    """

    size: int
    rank: int
    uneven: str

    def total(self, count: int) -> int:
        """The number of elements that all parts have together, given count elements."""
        if self.uneven == "drop":
            return count - count % self.size
        return math.ceil(count / self.size) * self.size

    def check(self, count: int) -> None:
        """Rejects too few elements.

        Raises:
          ValueError: some rank would get none.
        """
        if count == 0 or (self.uneven == "drop" and count < self.size):
            raise ValueError(
                f"{count} elements cannot be divided among {self.size} ranks; "
                + ('uneven="repeat" would repeat some' if count else "the data is empty")
            )


def in_one_order(dataset, arguments: dict, process_set):
    """The dataset, whose elements come in the same order on all ranks. Collective over the set.

    If its last transformation is a shuffle with another seed on each rank, all get the first
    rank's.

    Args:
      dataset: a tf.data.Dataset.
      arguments: what else must be equal on all ranks, by its name.
      process_set: the ranks.

    Raises:
      ValueError: the ranks have different elements, or shuffle them differently; raised on all.
    """
    *inner, last = [*_order.seeds_of(dataset), ()]
    if "Shuffle" in type(dataset).__name__ and hasattr(dataset, "_reshuffle_each_iteration"):
        *inner, last = inner
    within = _order.seeds_in_functions(dataset)
    inner = inner + within.shuffles
    entries = {
        **arguments,
        **_order.of_dataset(dataset),
        _order.SEEDS: inner,
        _order.LAST_SEEDS: last,
        _order.DRAWS: within.draws,
    }
    offer = last or (_order.seed_of_this_process(), 1)
    seeds, lines = _order.agree(entries, "shard of a dataset", process_set, offer)
    if process_set.size() == 1:
        return dataset
    differ = lines.pop(_order.SEEDS, None) is not None or None in inner
    chosen = lines.pop(_order.DRAWS, None) is not None or None in within.draws
    reseed = lines.pop(_order.LAST_SEEDS, None) is not None or last is None
    _order.refuse(lines, "hvd.shard")
    if chosen:
        raise ValueError(f"hvd.shard divides a dataset, but {_order.CHOSEN}")
    if differ:
        raise ValueError(f"hvd.shard divides a dataset, but {_order.SHUFFLED}")
    if not reseed:
        return dataset
    with seeds_of_datasets().fixed(seeds):
        return dataset._inputs()[0].shuffle(
            dataset._buffer_size, reshuffle_each_iteration=dataset._reshuffle_each_iteration
        )


def warn_if_unordered(dataset) -> None:
    """Warns if elements come in the order in which threads finish, so in another on each rank."""
    if _order.unordered(dataset):
        warnings.warn(
            "hvd.shard divides a dataset with deterministic=False, whose elements come in another "
            "order on each rank, so some may come twice in an epoch and others never. Call shard() "
            "before map() or interleave() with it, or leave it out",
            stacklevel=3,
        )


def divide(dataset, part: Part):
    """This part of a dataset: every size-th element."""
    _warn_if_batched(dataset)
    return _divide(dataset, int(dataset.cardinality()), part)


def _divide(dataset, count: int, part: Part):
    if part.size == 1 or count == tf.data.INFINITE_CARDINALITY:
        return dataset.shard(part.size, part.rank)
    if count == tf.data.UNKNOWN_CARDINALITY:
        return _divide_unknown(dataset, part)
    part.check(count)
    total = part.total(count)
    dataset = dataset.take(total) if total <= count else dataset.repeat().take(total)
    return dataset.shard(part.size, part.rank)


def _divide_unknown(dataset, part: Part):
    """Divides a dataset of unknown length: each rank takes one element of every `size` elements.

    An incomplete last group is dropped, or filled by repeating its own elements.
    """
    spec = dataset.element_spec
    if not all(isinstance(leaf, _IN_WINDOWS) for leaf in tf.nest.flatten(spec)):
        return _by_tensors(dataset, lambda tensors: _divide_unknown(tensors, part))
    # Functions of datasets get the components of a tuple as arguments, also if there is one.
    is_tuple = type(spec) is tuple

    def own(*window):
        # window() yields a dataset per component of an element.
        parts = tf.data.Dataset.zip(window if is_tuple else window[0])
        parts = parts.repeat() if part.uneven == "repeat" else parts
        return parts.skip(part.rank).take(1)

    return dataset.window(part.size, drop_remainder=part.uneven == "drop").flat_map(own)


def _by_tensors(dataset, transform):
    """transform(dataset), where that gets the elements as tuples of the tensors they consist of."""
    spec = dataset.element_spec

    def to_tensors(*element):
        whole = element if type(spec) is tuple else element[0]
        return tuple(tf.nest.flatten(whole, expand_composites=True))

    def from_tensors(*tensors):
        return tf.nest.pack_sequence_as(spec, tensors, expand_composites=True)

    return transform(dataset.map(to_tensors)).map(from_tensors)


def _warn_if_batched(dataset) -> None:
    """Warns if the dataset is batched, looking through transformations that keep batches."""
    kinds = ("Prefetch", "Options", "Map", "Cache", "Repeat", "Take", "Skip", "Shuffle", "Assert")
    while True:
        name = type(dataset).__name__
        if "Batch" in name and "Un" not in name:
            warnings.warn(
                "hvd.shard divides the batches of a dataset that is batched already; the last one "
                "may be smaller on some ranks. Call shard() before batch()",
                stacklevel=4,
            )
            return
        inputs = dataset._inputs()
        if len(inputs) != 1 or "FlatMap" in name or not any(kind in name for kind in kinds):
            return
        dataset = inputs[0]


def _epoch():
    """A dataset of one element: the number of times it has been iterated before."""
    with tf.init_scope(), tf.device("CPU:0"):
        passes = tf.Variable(-1, dtype=tf.int64, trainable=False)
    return tf.data.Dataset.from_tensors(0).map(lambda _: passes.assign_add(1))


def divide_shuffled(dataset, part: Part, seed: int, buffer_size: int):
    """This part of a dataset that is reshuffled in each epoch, identically on all ranks."""
    _warn_if_batched(dataset)
    count = int(dataset.cardinality())
    if count >= 0:
        part.check(count)
        buffer_size = min(buffer_size, count)

    def of_epoch(epoch):
        tf.compat.v1.get_default_graph().seed = _GRAPH_SEED
        shuffled = dataset.shuffle(buffer_size, seed + epoch, reshuffle_each_iteration=False)
        return _divide(shuffled, count, part)

    divided = _epoch().flat_map(of_epoch)
    if count == tf.data.UNKNOWN_CARDINALITY:
        return divided
    own = count if count < 0 else part.total(count) // part.size
    return divided.apply(tf.data.experimental.assert_cardinality(own))


def shuffled_arrays(nest, leaves, count: int, part: Part, seed: int):
    """This part of arrays that are reshuffled in each epoch, as a dataset of elements."""
    ragged = any(isinstance(leaf, tf.RaggedTensor) for leaf in leaves)
    with tf.device("CPU:0"):
        tensors = [
            leaf if isinstance(leaf, tf.RaggedTensor) else tf.convert_to_tensor(leaf)
            for leaf in leaves
        ]
    total = part.total(count)

    def of_epoch(epoch):
        order = tf.random.experimental.stateless_shuffle(
            tf.range(count, dtype=tf.int64), tf.stack([tf.constant(seed, tf.int64), epoch])
        )
        own = tf.gather(order, tf.range(part.rank, total, part.size) % count)
        return tf.data.Dataset.from_tensor_slices(own)

    def element(index):
        values = iter([tf.gather(tensor, index) for tensor in tensors])
        flat = [None if leaf is None else next(values) for leaf in tf.nest.flatten(nest)]
        return tf.nest.pack_sequence_as(nest, flat)

    indices = _epoch().flat_map(of_epoch)
    if ragged:  # a row alone would be a tensor; unbatch() keeps it ragged, for the script's batch()
        elements = indices.batch(1).map(element).unbatch()
    else:
        elements = indices.map(element)
    return elements.apply(tf.data.experimental.assert_cardinality(total // part.size))
