"""The callback that saves in the background, each rank its part."""

from __future__ import annotations

import os
import pathlib
import threading
import warnings
from collections.abc import Callable
from typing import Any

from smddp_tf._src.collectives.objects import allgather_object, broadcast_object
from smddp_tf._src.gradients.options import whole_number
from smddp_tf._src.job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf._src.state import parts
from smddp_tf.keras.callbacks import _checkpointed
from smddp_tf.keras.callbacks._base import Callback, Every, build, optimizers_of

_ASK_SECONDS = 0.5  # how long a rank waits for its disk before it hears of the others'


class _Write(threading.Thread):
    """Writes a part while training goes on. Python waits for it when it ends."""

    def __init__(self, write: Callable[[], None]) -> None:
        super().__init__(name="smddp_tf checkpoint")
        self._write = write
        self.problem = ""

    def run(self) -> None:
        """Keeps an error for the thread that trains."""
        try:
            self._write()
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}"


class ShardedCheckpoint(Callback):
    """Saves weights, optimizers' state and the epoch in the background, each rank its part.

    Training waits for a copy in memory of what this rank writes: 1/N of all, on N ranks. No rank
    gathers the state of optimizers with shard_state=True. A checkpoint is a folder of safetensors
    files, one for each rank, and counts once all of them are on the disk: after a kill the last
    whole one is there. restore() reads it on any number of ranks, divided or not.

    All ranks must see the directory, as on a shared file system. Put the callback on all ranks,
    after BroadcastGlobalVariablesCallback. A save that is due while a rank still writes the one
    before is left out, with a warning. The end of fit() saves what came after the last save.

    Needs safetensors 0.8: ``pip install 'smddp_tf[checkpoints]'``.

    Args:
      directory: where the checkpoints are, `checkpoint-000001` and so on; the same on all ranks.
      save_freq: "epoch", or a number of batches, as ModelCheckpoint's. With
        backward_passes_per_step, a multiple of it: gradients that were not applied yet are not
        saved.
      max_to_keep: how many whole checkpoints stay; None: all.
      process_set: the ranks that train this model together; must include this rank.

    Raises:
      ImportError: safetensors is missing or older than 0.8.
      TypeError, ValueError: save_freq or max_to_keep is not what it should be.

    Examples:
      >>> model = tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.Dense(1)])
      >>> model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.1)), loss="mse")
      >>> checkpoint = hvd.callbacks.ShardedCheckpoint("checkpoints")
      >>> epoch = checkpoint.restore(model)  # 0 the first time
      >>> callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), checkpoint]
      >>> options = dict(epochs=2, initial_epoch=epoch, callbacks=callbacks, verbose=0)
      >>> _ = model.fit(tf.ones([8, 2]), tf.ones([8, 1]), **options)
      >>> checkpoint.restore(model)
      2
    """

    _supports_tf_logs = True  # uses no logs

    def __init__(
        self,
        directory: str | os.PathLike[str],
        save_freq: str | int = "epoch",
        max_to_keep: int | None = 2,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__()
        parts.require_safetensors()
        check_process_set(process_set)
        self.directory = pathlib.Path(directory)
        self.process_set = process_set
        self._every = Every("save_freq", save_freq)
        self._keep = None if max_to_keep is None else whole_number("max_to_keep", max_to_keep, 1)
        self._writing: _Write | None = None
        self._last = 0  # the number of the last save
        self._epoch: int | None = None  # how many have ended; None before the first begins
        self._saved: int | None = None  # the epoch of the last save
        self._warned = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Counts batches from 0.

        Raises:
          ValueError: the ranks hold what no file could give to other ranks.
        """
        del logs
        self._every.begin()
        self._epoch = self._saved = None
        if self.model.built:
            _checkpointed.require_supported(self.model)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Keeps the number of epochs that have ended."""
        del logs
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves if save_freq batches have passed."""
        del logs
        if self._every.after_batch(batch):
            self.save(self.model, self._epoch or 0)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves if save_freq is "epoch"."""
        del logs
        self._epoch = epoch + 1
        if self._every.epoch:
            self.save(self.model, self._epoch)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Returns once the last checkpoint is whole."""
        del logs
        self.wait()
        if self._epoch is not None and self._saved != self._epoch:
            self.save(self.model, self._epoch)
            self.wait()

    def save(self, model: Any, epoch: int) -> bool:
        """Begins to save, as fit() does; for loops of one's own. Collective.

        Args:
          model: a compiled model, or one with optimizers among its attributes.
          epoch: what restore() is to return.

        Returns:
          False if it was left out, since a rank still writes the one before.

        Raises:
          OSError: a rank could not write the one before, or the first cannot make a folder; raised
            on all ranks.
          ValueError: the ranks hold what no file could give to other ranks.
        """
        _checkpointed.require_supported(model)
        if self._is_writing():
            if not self._warned:
                warnings.warn(
                    f"a checkpoint is left out, since a rank still writes the one before to "
                    f"{self.directory}: the disk takes longer than save_freq",
                    RuntimeWarning,
                    stacklevel=2,
                )
            self._warned = True
            return False
        path, run = self._next()
        rank: Any = self.process_set.rank()
        ranks: Any = self.process_set.size()
        pieces = _checkpointed.pieces(model, self.process_set)
        facts = _checkpointed.facts(model, epoch)

        def write() -> None:
            self._prune()
            parts.write(path, rank, ranks, run, pieces, facts)

        self._writing = _Write(write)
        self._writing.start()
        self._saved = epoch
        return True

    def wait(self) -> None:
        """Returns once what save() began is whole, on all ranks. Collective.

        Raises:
          OSError: a rank could not write; raised on all ranks.
        """
        while self._is_writing():
            if self._writing is not None:
                self._writing.join(_ASK_SECONDS)
        self._prune()

    def restore(self, model: Any) -> int:
        """Reads the newest whole checkpoint, if there is one. Collective.

        Every rank reads what it needs, on any number of ranks; the optimizer's state may have been
        divided then and not now, or the other way round. Random generators go on from the first
        rank's, with another seed on each rank.

        Args:
          model: built, and compiled with its optimizer, as when it was saved. Preprocessing layers
            must have been adapted to the same data.

        Returns:
          The number of epochs that it has behind it, for fit(initial_epoch=...); 0 without a
          checkpoint.

        Raises:
          OSError: a rank cannot read a part; raised on all ranks.
          ValueError: the checkpoint is of another model or optimizer; raised on all ranks.
        """
        _checkpointed.require_supported(model)
        for optimizer in optimizers_of(model):
            build(optimizer, model.trainable_variables)
        self.wait()
        newest = parts.whole(self.directory) if self.process_set.rank() == 0 else []
        root = self.process_set.ranks[0]
        path = broadcast_object(
            newest[0] if newest else None, root, "checkpoint", process_set=self.process_set
        )
        if path is None:
            return 0
        checkpoint, unreadable, problems = None, "", []
        try:
            checkpoint = parts.Checkpoint(path)
            problems = _checkpointed.problems(model, checkpoint)
        except OSError as error:
            unreadable = f"{error}; all ranks must see all of its files"
        except ValueError as error:
            problems = [str(error)]
        self._require_none(OSError, f"cannot read {path}", unreadable)
        self._require_none(ValueError, f"cannot go on from {path}", "; ".join(problems[:5]))
        assert checkpoint is not None
        _checkpointed.restore(model, checkpoint, self.process_set)
        return int(checkpoint.facts["epoch"])

    def _next(self) -> tuple[pathlib.Path, str]:
        """A new folder, made by the first rank, and a text that no other save has.

        Raises:
          OSError: it cannot be made; raised on all ranks.
        """
        number, run, problem = 0, os.urandom(8).hex(), ""
        if self.process_set.rank() == 0:
            try:
                number = max(self._last + 1, parts.next_number(self.directory))
                parts.path_of(self.directory, number).mkdir(parents=True)
            except OSError as error:
                problem = f"the first rank cannot make a folder in {self.directory}: {error}"
        root = self.process_set.ranks[0]
        self._last, run, problem = broadcast_object(
            (number, run, problem), root, "checkpoint's number", process_set=self.process_set
        )
        if problem:
            raise OSError(problem)
        return parts.path_of(self.directory, self._last), run

    def _is_writing(self) -> bool:
        """Whether a rank still writes; after an error none does."""
        busy = self._writing is not None and self._writing.is_alive()
        problem = "" if self._writing is None or busy else self._writing.problem
        self._writing = self._writing if busy else None
        try:
            return any(self._require_none(OSError, "could not write its part", problem, busy))
        except OSError:
            if self._writing is not None:
                self._writing.join()
                self._writing = None
            raise

    def _require_none(
        self, kind: type[Exception], what: str, problem: str, value: Any = None
    ) -> list[Any]:
        """Raises on all ranks if one has a problem; else returns the ranks' values."""
        rank = self.process_set.ranks[self.process_set.rank()]
        of_all = allgather_object(
            (rank, problem, value), name="checkpoint", process_set=self.process_set
        )
        texts = [f"rank {one} {what}: {text}" for one, text, _ in of_all if text]
        if texts:
            raise kind("\n".join(texts))
        return [one for _, _, one in of_all]

    def _prune(self) -> None:
        if self._keep is not None and self.process_set.rank() == 0:
            parts.prune(self.directory, self._keep)
