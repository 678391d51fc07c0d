"""The callback that gathers divided optimizers' state for callbacks that save."""

from __future__ import annotations

import contextlib
from typing import Any

from smddp_tf._src.job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf.keras._whole_state import whole_state
from smddp_tf.keras.callbacks._base import Callback, Every, is_divided, optimizers_of


class GatherState(Callback):
    """Gathers the state of optimizers with shard_state=True on the first rank, before it saves.

    Put it on all ranks, before ModelCheckpoint, BestModelCheckpoint or what else saves on the first
    rank. That rank needs memory for the whole state from then until the next batch begins. After
    fit(), use hvd.whole_state().

    Args:
      every: "epoch", or a number of batches, as save_freq of the callback that saves.
      process_set: the ranks that train this model together; must include this rank.

    Raises:
      TypeError, ValueError: every is neither "epoch" nor a positive integer.

    Examples:
      >>> callbacks = [hvd.callbacks.GatherState(), hvd.callbacks.BestModelCheckpoint("loss")]
    """

    _supports_tf_logs = True  # uses no logs

    def __init__(
        self, every: str | int = "epoch", process_set: ProcessSet = global_process_set
    ) -> None:
        super().__init__()
        check_process_set(process_set)
        self._every = Every("every", every)
        self.process_set = process_set
        self._gathered = contextlib.ExitStack()

    def _gather(self) -> None:
        self._gathered.close()
        root = self.process_set.ranks[0]
        for optimizer in filter(is_divided, optimizers_of(self.model)):
            self._gathered.enter_context(whole_state(optimizer, root))

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Counts batches from 0."""
        del logs
        self._gathered.close()
        self._every.begin()

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Drops what was gathered."""
        del batch, logs
        self._gathered.close()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Gathers if `every` batches have passed."""
        del logs
        if self._every.after_batch(batch):
            self._gather()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Gathers if every="epoch"."""
        del epoch, logs
        if self._every.epoch:
            self._gather()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Drops what was gathered."""
        del logs
        self._gathered.close()
