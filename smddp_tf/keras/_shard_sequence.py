"""Divides the batches of a keras.utils.PyDataset or Sequence among ranks."""

import numpy as np

from smddp_tf._graph.framework import tensorflow

tf = tensorflow()

_KERAS3 = hasattr(tf.keras.utils, "PyDataset")
SEQUENCE = tf.keras.utils.PyDataset if _KERAS3 else tf.keras.utils.Sequence


def options_of(batches) -> dict:
    """The PyDataset arguments that control how Keras 3 fetches batches; {} for a Sequence."""
    names = ("workers", "use_multiprocessing", "max_queue_size") if _KERAS3 else ()
    return {name: getattr(batches, name) for name in names}


class ShardedSequence(SEQUENCE):
    """This rank's batches of a PyDataset or Sequence.

    Args:
      batches: the whole PyDataset or Sequence, the same on every rank.
      part: a _shard_dataset.Part.
      shuffle: reshuffle the batches in each epoch.
      seed: the seed of the shuffle.

    Raises:
      ValueError: there are too few batches to give each rank one, or their number is unknown.
    """

    def __init__(self, batches, part, shuffle, seed) -> None:
        super().__init__(**options_of(batches))
        if _KERAS3 and batches.num_batches is None:
            raise ValueError(
                f"{type(batches).__name__} has no number of batches, so it cannot be divided; "
                "give it __len__()"
            )
        self.batches, self.part = batches, part
        self.shuffle, self.seed = shuffle, seed
        self.epoch = 0
        self._order = None
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
        """Forwards to the whole PyDataset or Sequence; the next epoch has a new order."""
        self.batches.on_epoch_end()
        self.epoch += 1
