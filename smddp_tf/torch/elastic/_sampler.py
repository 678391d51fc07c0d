"""ElasticSampler: which samples of a data set this rank loads, whatever becomes of the ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from smddp_tf._src.job import basics


class ElasticSampler(Sampler[int]):
    """Divides a data set among the ranks; when these change, what is left of the epoch.

    Give it to a DataLoader and to a TorchState, call record_batch() after each step, and
    set_epoch() at the end of each epoch. When ranks are lost, join or leave, each sample that was
    recorded before the last commit is done, and the others are divided among the ranks that are
    there. All get equally many: if these do not divide evenly, some samples are used twice.

    Args:
      dataset: of the same length on all ranks.
      shuffle: another order in each epoch, the same on all ranks.
      seed: of the orders.

    Attributes:
      epoch: as given to set_epoch().
      num_replicas: the number of ranks.
      rank: this one.
      remaining_indices: what was not done when the ranks last changed, or the epoch began.
      num_samples: how many of these each rank gets.
      total_size: how many all ranks get, repeated ones included.

    Examples:
      >>> sampler = hvd.elastic.ElasticSampler(range(8), shuffle=False)
      >>> next(iter(sampler)) == hvd.rank()
      True
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = 0
        self._divide(frozenset())

    def _divide(self, done: frozenset[int]) -> None:
        """Divides the samples that are not done among the ranks that are there."""
        self.num_replicas, self.rank = basics.size(), basics.rank()
        self._done = done
        self.remaining_indices = [one for one in range(len(self.dataset)) if one not in done]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        self._order = self.remaining_indices
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            places = torch.randperm(len(self._order), generator=generator, device="cpu").tolist()
            self._order = [self.remaining_indices[place] for place in places]
        self._recorded = 0  # so many of the order are done, for all ranks together,
        self._others: set[int] = set()  # and these

    def reset(self) -> None:
        """Divides what is not done yet among the ranks that are there."""
        self._divide(self.processed_indices)

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, of which nothing is done.

        Call it at the end of an epoch: what was done would be forgotten if a training that goes on
        in the middle of one called it first.

        Args:
          epoch: numbers the order of the samples.
        """
        self.epoch = epoch
        self._divide(frozenset())

    # ---- what is done ---------------------------------------------------------------------------

    @property
    def processed_indices(self) -> frozenset[int]:
        """The samples of this epoch that were recorded."""
        return self._done.union(self._order[: self._recorded], self._others)

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Records a batch, for all ranks: each has done its batch of that number.

        Args:
          batch_idx: counts the batches since the loader was iterated over, from 0.
          batch_size: of each rank.
        """
        begin = batch_idx * batch_size * self.num_replicas
        end = begin + batch_size * self.num_replicas
        if begin <= self._recorded:
            self._recorded = max(self._recorded, end)
        else:
            self._others.update(self._order[begin:end])

    def record_indices(self, indices: Iterable[int]) -> None:
        """Records samples, for this rank; other ranks hear of them when the ranks change."""
        self._others.update(map(int, indices))

    # ---- for a DataLoader -----------------------------------------------------------------------

    def _own(self) -> list[int]:
        every = itertools.islice(itertools.cycle(self._order), self.total_size)
        return list(every)[self.rank :: self.num_replicas]

    def __iter__(self) -> Iterator[int]:
        return iter(self._own())

    def __len__(self) -> int:
        return self.num_samples

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """This rank's samples in a batch."""
        return self._own()[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    # ---- for states -----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The epoch and the samples that are done."""
        return {"epoch": self.epoch, "processed_indices": set(self.processed_indices)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on with the rest of an epoch.

        Args:
          state_dict: of state_dict(), on any number of ranks.
        """
        self.epoch = state_dict["epoch"]
        self._divide(frozenset(state_dict["processed_indices"]))

    def position(self) -> tuple[Any, ...]:
        """What go_back() takes; it costs no copy of what is done."""
        return self.epoch, self._done, self._recorded, frozenset(self._others)

    def go_back(self, position: tuple[Any, ...]) -> None:
        """Goes on from there with the ranks that are there."""
        self.epoch, done, recorded, others = position
        self._divide(done)
        self._recorded, self._others = recorded, set(others)
        self.reset()
