"""Dividing a tf.data.Dataset among ranks, and shuffling it for all of them alike."""

import dataclasses
import math
import warnings

from smddp_tf._graph.framework import tensorflow

tf = tensorflow()

# The seed of functions' graphs in which we shuffle. Without one TensorFlow mixes in the seed of
# tf.random.set_seed(), which scripts choose by rank.
_GRAPH_SEED = 1


@dataclasses.dataclass(frozen=True)
class Part:
    """Which part of the elements a rank has.

    Attributes:
      size: the number of parts.
      rank: the number of this part, from 0.
      uneven: "drop" or "repeat".
    """

    size: int
    rank: int
    uneven: str

    def total(self, count: int) -> int:
        """How many of count elements are dealt out, in all."""
        if self.uneven == "drop":
            return count - count % self.size
        return math.ceil(count / self.size) * self.size

    def check(self, count: int) -> None:
        """Refuses too few elements.

        Raises:
          ValueError: some rank would have none.
        """
        if count == 0 or (self.uneven == "drop" and count < self.size):
            raise ValueError(
                f"{count} elements cannot be divided among {self.size} ranks; "
                + ('uneven="repeat" would repeat some' if count else "the data are empty")
            )


def divide(dataset, part: Part):
    """Every size-th element."""
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
    """Groups of `size` elements; each rank takes one of each. The end is seen when it comes.

    An incomplete last group is dropped, or its elements are dealt out again.
    """

    def own(*window):
        # Each component of an element is a dataset of its own.
        parts = tf.data.Dataset.zip(tuple(tf.nest.flatten(window)))
        parts = parts.repeat() if part.uneven == "repeat" else parts
        structure = window if len(window) > 1 else window[0]
        one = parts.skip(part.rank).take(1)
        return one.map(lambda *leaves: tf.nest.pack_sequence_as(structure, leaves))

    return dataset.window(part.size, drop_remainder=part.uneven == "drop").flat_map(own)


def _warn_if_batched(dataset) -> None:
    """Looks where elements became batches, through what leaves them as they are."""
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
    """A dataset of one element: how often it was iterated before."""
    with tf.init_scope(), tf.device("CPU:0"):
        passes = tf.Variable(-1, dtype=tf.int64, trainable=False)
    return tf.data.Dataset.from_tensors(0).map(lambda _: passes.assign_add(1))


def divide_shuffled(dataset, part: Part, seed: int, buffer_size: int):
    """Every size-th element of an order that is new in each epoch, and the same on all ranks."""
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
    """The elements of arrays as a dataset: its part of an order that is new in each epoch."""
    with tf.device("CPU:0"):
        tensors = [tf.convert_to_tensor(leaf) for leaf in leaves]
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
    cardinality = tf.data.experimental.assert_cardinality(total // part.size)
    return indices.map(element).apply(cardinality)
