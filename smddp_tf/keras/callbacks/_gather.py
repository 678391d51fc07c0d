"""The callback that gathers divided optimizers' state for callbacks that save."""

from __future__ import annotations

import contextlib
from typing import Any

from smddp_tf._src.gradients.options import whole_number
from smddp_tf._src.job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf.keras._whole_state import whole_state
from smddp_tf.keras.callbacks._base import Callback, is_divided, optimizers_of


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
        self.every: Any = every if every == "epoch" else whole_number("every", every, 1)
        self.process_set = process_set
        self._gathered = contextlib.ExitStack()
        self._seen, self._last = 0, -1  # batches since it gathered; the number of the last one

    def _gather(self) -> None:
        self._gathered.close()
        root = self.process_set.ranks[0]
        for optimizer in filter(is_divided, optimizers_of(self.model)):
            self._gathered.enter_context(whole_state(optimizer, root))

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Counts batches from 0."""
        del logs
        self._gathered.close()
        self._seen, self._last = 0, -1

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Drops what was gathered."""
        del batch, logs
        self._gathered.close()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Gathers if `every` batches have passed."""
        del logs
        self._seen += batch - self._last if batch > self._last else batch + 1
        self._last = batch
        if self.every != "epoch" and self._seen >= self.every:
            self._seen = 0
            self._gather()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Gathers if every="epoch"."""
        del epoch, logs
        if self.every == "epoch":
            self._gather()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Drops what was gathered."""
        del logs
        self._gathered.close()
