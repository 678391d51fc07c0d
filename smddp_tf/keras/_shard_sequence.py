"""Divides the batches of a keras.utils.PyDataset or Sequence among ranks."""

import dataclasses

import numpy as np

from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.types import LoadedClass
from smddp_tf.keras import _order

tf = tensorflow()

_KERAS3 = hasattr(tf.keras.utils, "PyDataset")
SEQUENCE: LoadedClass = tf.keras.utils.PyDataset if _KERAS3 else tf.keras.utils.Sequence


def options_of(batches) -> dict:
    """The PyDataset arguments that control how Keras 3 fetches batches; {} for a Sequence."""
    names = ("workers", "use_multiprocessing", "max_queue_size") if _KERAS3 else ()
    return {name: getattr(batches, name) for name in names}


@dataclasses.dataclass(frozen=True)
class Agreed:
    """What ranks agreed on when they divided a PyDataset or Sequence.

    Attributes:
      seed: of the random numbers in its on_epoch_end(); None if there is one rank.
      orders: the _order.Orders that it has.
    """

    seed: int | None
    orders: _order.Orders


def in_one_order(batches, arguments: dict, process_set) -> Agreed:
    """Has all ranks begin with the same order of batches. Collective over the set.

    Index arrays that the ranks shuffled differently are shuffled again by on_epoch_end(), with the
    same random numbers on all ranks.

    Raises:
      ValueError: the ranks have different data, or still different orders; raised on all ranks.
    """
    if _KERAS3 and batches.num_batches is None:
        raise ValueError(
            f"{type(batches).__name__} has no number of batches, so it cannot be divided; "
            "give it __len__()"
        )

    def compare():
        entries = {**arguments, **_order.of_sequence(batches)}
        return _order.agree(entries, "shard of batches", process_set, _order.seed_of_this_process())

    seed, lines = compare()
    if lines and all(label.startswith("attribute") for label in lines):
        with _order.same_random_numbers(seed, 0):
            batches.on_epoch_end()
        _, lines = compare()
    _order.refuse(lines, "hvd.shard")
    several = process_set.size() > 1
    return Agreed(seed if several else None, _order.Orders(batches, process_set))


class ShardedSequence(SEQUENCE):
    """This rank's batches of a PyDataset or Sequence.

    Args:
      batches: the whole PyDataset or Sequence, the same on every rank.
      part: a _shard_dataset.Part.
      shuffle: reshuffle the batches in each epoch.
      seed: the seed of the shuffle.
      agreed: what in_one_order() returned.

    Raises:
      ValueError: there are too few batches to give each rank one.
    """

    def __init__(self, batches, part, shuffle, seed, agreed: Agreed) -> None:
        super().__init__(**options_of(batches))
        self.batches, self.part, self.agreed = batches, part, agreed
        self.shuffle, self.seed = shuffle, seed
        self.epoch = 0
        self._order: tuple | None = None
        part.check(len(batches))

    def __len__(self) -> int:
        return self.part.total(len(self.batches)) // self.part.size

    def __getitem__(self, index: int):
        at = (self.part.rank + index * self.part.size) % len(self.batches)
        return self.batches[self._permuted(at)]

    def _permuted(self, at: int) -> int:
        if not self.shuffle:
            return at
        known = self.epoch, len(self.batches)
        if self._order is None or self._order[0] != known:
            generator = np.random.default_rng([self.seed, self.epoch])
            self._order = known, generator.permutation(len(self.batches))
        return int(self._order[1][at])

    def on_epoch_begin(self) -> None:
        """Forwards to the whole PyDataset or Sequence."""
        if hasattr(self.batches, "on_epoch_begin"):
            self.batches.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Forwards to the whole PyDataset or Sequence; the next epoch has a new order.

        Python's and NumPy's global random numbers are the same on all ranks meanwhile.
        """
        self.epoch += 1
        if self.agreed.seed is None:
            self.batches.on_epoch_end()
            return
        with _order.same_random_numbers(self.agreed.seed, self.epoch):
            self.batches.on_epoch_end()
        self.agreed.orders.note(self.batches, self.epoch)
