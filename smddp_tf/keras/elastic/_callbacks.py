"""Keras callbacks that commit a state and keep its position."""

from __future__ import annotations

from typing import Any

from smddp_tf._src.elastic.samples import Samples
from smddp_tf.keras.callbacks._base import Callback
from smddp_tf.keras.elastic._state import State


def _checked(state: Any, *names: str) -> State:
    if not isinstance(state, State):
        raise TypeError(f"expected an elastic state, got {type(state).__name__}")
    for name in names:
        if not hasattr(state, name):
            raise ValueError(f"the state has no {name}; give it one: KerasState(model, {name}=0)")
    return state


class CommitStateCallback(Callback):
    """Commits the state after every so many batches, and at the end of each epoch.

    The state's `batch` and `epoch` are up to date in what it commits, wherever their callbacks are
    in the list.

    Args:
      state: the state to commit.
      batches_per_commit: how many batches to train between commits; a commit costs a copy of the
        model.

    Raises:
      TypeError: not a state.
      ValueError: batches_per_commit is not a positive integer.
    """

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__()
        if not isinstance(batches_per_commit, int) or batches_per_commit < 1:
            raise ValueError(
                f"batches_per_commit={batches_per_commit!r} has to be an integer of at least 1"
            )
        self.state, self.batches_per_commit = _checked(state), batches_per_commit
        self._batches = 0  # since the last commit
        self._last = -1

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Counts from here, on all ranks alike."""
        del logs
        self._batches = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Batches are numbered from 0 in each epoch."""
        del epoch, logs
        self._last = -1

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Commits if it is time; with steps_per_execution several batches end at once."""
        del logs
        self._batches += batch - self._last
        self._last = batch
        if self._batches >= self.batches_per_commit:
            self._batches = 0
            for one in self.state._counters:
                one.note_batch(batch)
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Commits."""
        del logs
        self._batches = 0
        for one in self.state._counters:
            one.note_epoch(epoch)
        self.state.commit()


class _Counter(Callback):
    """Keeps an attribute of a state up to date, also for callbacks that come before it."""

    def __init__(self, state: State, name: str) -> None:
        super().__init__()
        self.state, self._name = _checked(state, name), name
        self._before = getattr(state, name)
        state._counters.append(self)

    def _set(self, done: int) -> None:
        setattr(self.state, self._name, done)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Counts from what is done."""
        del logs
        self._before = getattr(self.state, self._name)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts a batch."""
        del logs
        self.note_batch(batch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts an epoch."""
        del logs
        self.note_epoch(epoch)


class UpdateBatchStateCallback(_Counter):
    """Sets `state.batch` to the number of batches of the epoch that are done; 0 at its end.

    Batches that were done when fit() began count, so ``fit(data.skip(state.batch), epochs=1)`` goes
    on within an epoch. Horovod's callback sets the number of the last batch in fit().

    Args:
      state: a state with an attribute `batch`.

    Raises:
      TypeError: not a state.
      ValueError: it has no `batch`.
    """

    def __init__(self, state: State) -> None:
        super().__init__(state, "batch")

    def note_batch(self, batch: int) -> None:
        """Batch number `batch` of this fit() is done."""
        self._set(self._before + batch + 1)

    def note_epoch(self, epoch: int) -> None:
        """An epoch is done."""
        del epoch
        self._before = 0
        self._set(0)


class UpdateEpochStateCallback(_Counter):
    """Sets `state.epoch` to the number of epochs that are done, those before a restart included.

    Use it as in ``model.fit(..., epochs=epochs - state.epoch)``, or with
    ``initial_epoch=state.epoch, epochs=epochs``.

    Args:
      state: a state with an attribute `epoch`.

    Raises:
      TypeError: not a state.
      ValueError: it has no `epoch`.
    """

    def __init__(self, state: State) -> None:
        super().__init__(state, "epoch")
        self._first: Any = None  # the number of the epoch that fit() began with

    def note_batch(self, batch: int) -> None:
        """Nothing changes within an epoch."""

    def note_epoch(self, epoch: int) -> None:
        """Epoch number `epoch` of this fit() is done."""
        self._set(self._before + epoch - self._first + 1)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Counts from the epochs that are done."""
        super().on_train_begin(logs)
        self._first = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Keeps the number that fit() began with."""
        del logs
        if self._first is None:
            self._first = epoch


class UpdateSamplesStateCallback(_Counter):
    """Moves the position of `state.samples` past the samples that fit() has trained on.

    A batch of fit() has to be a step of the samples, and it trains to the end of the epoch::

        parts = state.samples.parts()
        batches = ((x[part], y[part]) for part in parts)
        model.fit(batches, steps_per_epoch=len(parts), callbacks=[...])

    Args:
      state: a state with an attribute `samples`, an hvd.elastic.Samples.

    Raises:
      TypeError: not a state.
      ValueError: it has no `samples`.
    """

    def __init__(self, state: State) -> None:
        super().__init__(state, "samples")
        self._moved = 0  # steps of this fit()

    def _samples(self) -> Samples:
        return getattr(self.state, "samples")  # noqa: B009

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Counts from where the samples are."""
        del logs
        self._moved = 0

    def note_batch(self, batch: int) -> None:
        """Batch number `batch` of this fit() is done."""
        self._samples().advance(batch + 1 - self._moved)
        self._moved = batch + 1

    def note_epoch(self, epoch: int) -> None:
        """An epoch is done, also if fit() has left out some of its steps."""
        del epoch
        if self._samples().position:
            self._samples().end_epoch()
        self._moved = 0
