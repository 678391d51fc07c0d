"""Samples: which samples each rank trains on, each once an epoch, whatever becomes of the ranks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from smddp_tf._src.job import basics


class Samples:
    """The order of a data set's samples, and how far training has come; an attribute of a state.

    A step takes the next samples of the order, as many for all ranks together whatever their
    number, and each rank takes its part of them. The position belongs to the state, so it goes back
    with the weights when a rank is lost. So each sample is used once an epoch, in as many steps.

    Args:
      count: the number of samples.
      batch_size: the samples of a step, of all ranks together. Choose a multiple of the numbers of
        ranks that there may be, so that parts are equal and the average of ranks is that of
        samples; at least twice as many. The last two steps of an epoch share what is left.
      shuffle: another order in each epoch, the same on all ranks; otherwise 0 to count - 1.
      seed: of the orders.

    Attributes:
      epoch: the number of epochs that are done.
      position: how many samples of this epoch were handed out.

    Raises:
      ValueError: count or batch_size is not a positive integer.

    Examples:
      >>> state = hvd.elastic.ObjectState(samples=hvd.elastic.Samples(100, batch_size=20))
      >>> steps = [len(indices) for indices in state.samples.batches()]
      >>> len(steps), state.samples.epoch
      (5, 1)
    """

    def __init__(self, count: int, batch_size: int, shuffle: bool = True, seed: int = 0) -> None:
        for name, value in {"count": count, "batch_size": batch_size}.items():
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r} has to be an integer of at least 1")
        self.count, self.batch_size = count, batch_size
        self.shuffle, self.seed = shuffle, seed
        self.epoch = self.position = 0

    def __repr__(self) -> str:
        return f"Samples(epoch={self.epoch}, position={self.position} of {self.count})"

    def _order(self) -> np.ndarray:
        if not self.shuffle:
            return np.arange(self.count)
        return np.random.default_rng([self.seed, self.epoch]).permutation(self.count)

    def _ends(self) -> list[int]:
        """Where the steps of the rest of this epoch end; the same for any number of ranks."""
        ends = [*range(self.batch_size, self.count, self.batch_size), self.count]
        if len(ends) > 1 and self.count % self.batch_size:
            begin = ends[-2] - self.batch_size
            ends[-2] = begin + (self.count - begin + 1) // 2
        return [end for end in ends if end > self.position]

    def parts(self) -> list[np.ndarray]:
        """This rank's samples in each step of the rest of this epoch; the position stays.

        Returns:
          An array of int64 for each step, of at least one sample each.

        Raises:
          ValueError: a step has fewer samples than there are ranks.
        """
        rank, ranks = basics.connected()
        order, begin, parts = self._order(), self.position, []
        for end in self._ends():
            if end - begin < ranks:
                raise ValueError(
                    f"a step of {end - begin} samples has none for some of the {ranks} ranks; take "
                    f"a batch_size of at least {2 * ranks}, twice their number, and as many samples"
                )
            parts.append(np.array_split(order[begin:end], ranks)[rank])
            begin = end
        return parts

    def batches(self) -> Iterator[np.ndarray]:
        """Hands out this rank's samples of step after step, to the end of the epoch.

        The position is past a step's samples as soon as they are handed out, so commit after the
        step, not before it.

        Yields:
          An array of int64 with the numbers of this rank's samples.

        Raises:
          ValueError: a step has fewer samples than there are ranks.
        """
        for end, part in zip(self._ends(), self.parts(), strict=True):
            self.position = end
            yield part
        self.end_epoch()

    def advance(self, steps: int) -> None:
        """Moves the position past so many steps of this epoch; after its last the next begins."""
        if steps > 0:
            self.position = self._ends()[steps - 1]
            if self.position == self.count:
                self.end_epoch()

    def end_epoch(self) -> None:
        """The next epoch begins."""
        self.epoch, self.position = self.epoch + 1, 0
