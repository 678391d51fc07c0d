"""Checks that the ranks hold the same weights, optimizer state and options during training."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from smddp_tf._src.gradients.equality import differences, digests, require_equal
from smddp_tf._src.job import basics
from smddp_tf._src.job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf._src.types import Variable
from smddp_tf.keras import _distribution
from smddp_tf.keras.callbacks import _state
from smddp_tf.keras.callbacks._base import Callback, epoch_or_batches, listed, optimizers_of

_CAUSES = (
    "Likely causes: an optimizer that is not wrapped by hvd.DistributedOptimizer (one of several, "
    "or one made anew from a configuration: clone_model, from_config, compile_from_config); a "
    "train_step that assigns weights itself, or bypasses the wrapped optimizer; a step that was "
    "traced before the optimizer was wrapped. Register variables that are local on purpose: "
    "optimizer.register_local_var(variable), or local_variables= of the callback"
)


class CheckRanksEqual(Callback):
    """Raises on all ranks when the ranks no longer hold the same weights or options.

    Checks after the first batch, then every epoch or every N batches, and at the end of training.
    Compares, bit by bit, trainable and frozen weights and the optimizers' variables; also learning
    rates and the arguments of DistributedOptimizer; and of layers their arguments, but for names
    and seeds, and what they keep besides variables: vocabularies, boundaries, means. Its position
    among the callbacks does not matter. A check reads and hashes all this, but sends only a few
    bytes.

    Excluded is state that legitimately differs: random generators (each rank has its own dropout),
    local variables, accumulated gradients that were not applied yet, and the non-trainable state of
    layers, such as BatchNormalization's moving statistics, which are per rank until averaged. With
    sync_every so are the optimizer, and the weights that it has trained since the last exchange;
    what the ranks exchanged last is compared.

    Args:
      every: "epoch", or a number of batches.
      also_statistics: also compare moving statistics and other non-trainable state.
      local_variables: a further variable that may differ, or several in a list.
      process_set: the ranks that train this model together.

    Raises:
      TypeError, ValueError: every is neither "epoch" nor a positive integer.
      smddp_tf.errors.RanksDifferError: raised during training; it names the variables or options,
        and the ranks that differ from the majority.
    """

    _supports_tf_logs = True  # uses no logs, so tf_keras need not convert them

    def __init__(
        self,
        every: str | int = "epoch",
        also_statistics: bool = False,
        local_variables: Variable | Iterable[Variable] | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__()
        check_process_set(process_set)
        self.every: Any = epoch_or_batches("every", every)
        self.also_statistics = also_statistics
        self.local_variables = listed(local_variables)
        self.process_set = process_set
        self._epochs_before = 0  # batches of completed epochs
        self._batches = 0
        self._checked = -1  # value of _batches at the last check

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Resets the batch counters."""
        del logs
        self._epochs_before, self._batches, self._checked = 0, 0, -1

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Checks after the first batch, and when `every` batches have passed."""
        del logs
        before, self._batches = self._batches, self._epochs_before + batch + 1
        if before == 0:
            self._check("after the first batch")
        elif self.every != "epoch" and self._batches // self.every > before // self.every:
            self._check(f"after {self._batches} batches")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Checks if every="epoch"."""
        del logs
        self._epochs_before = self._batches
        if self.every == "epoch":
            self._check(f"after epoch {epoch + 1}")

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Checks the final weights."""
        del logs
        self._checked = -1  # the optimizer may have replaced the weights by their averages
        self._check("at the end of training")

    def _check(self, when: str) -> None:
        if self._checked == self._batches or self.process_set.size() == 1:
            return
        self._checked = self._batches
        own = _state.everything(self.model, self.local_variables, self.also_statistics)
        require_equal(own, f"CheckRanksEqual {when}", self.process_set, when)


class FirstUpdate:
    """Warns once if the first update of a fit() left the ranks with different weights.

    Args:
      model: the model.
      local: identities of variables that may differ.
      process_set: the ranks that received the initial broadcast.
      again: the broadcast was before an earlier fit(), so weights may have differed already.
    """

    def __init__(
        self,
        model: Any,
        local: set[int],
        process_set: ProcessSet = global_process_set,
        again: bool = False,
    ) -> None:
        self._model, self._local, self._process_set = model, local, process_set
        self._again = again
        self._counted = _reductions()
        self._seen, self._in_epoch = 0, 0  # batches in all, and in this epoch
        self._due: int | None = None  # number of batches after which the first update has happened
        self._warned = False

    def look(self, batch: int) -> bool:
        """Runs the checks that are due at the end of a batch. Returns whether all are done."""
        done = batch + 1
        self._seen += done - self._in_epoch if done > self._in_epoch else done
        self._in_epoch = done
        if self._due is None:
            self._look_at_counters()
            self._due = self._batches_of_an_update()
        if self._seen < self._due:
            return False
        self._look_at_weights()
        return True

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(text, RuntimeWarning, stacklevel=5)

    def _distributions(self) -> list[Any]:
        found = map(_distribution.of, optimizers_of(self._model))
        return [distribution for distribution in found if distribution is not None]

    def _batches_of_an_update(self) -> int:
        passes = [distribution.passes for distribution in self._distributions()]
        passes += [one.period for one in self._distributions() if one.is_local_steps]
        inner = _distribution.innermost(getattr(self._model, "optimizer", None))
        return max([*passes, getattr(inner, "gradient_accumulation_steps", None) or 1])

    def _look_at_counters(self) -> None:
        if not self._model.trainable_variables:  # nothing to reduce
            return
        waits = self._batches_of_an_update() > 1
        if _reductions() > self._counted or (waits and self._distributions()):
            return
        advice = "Wrap the optimizer before compile(): optimizer = hvd.DistributedOptimizer(...)"
        if self._distributions():
            advice = _CAUSES
        self._warn(
            "the first batch reduced no gradients: unless a later one does (a train_step that "
            "accumulates them), every rank trains a model of its own. " + advice
        )

    def _look_at_weights(self) -> None:
        """Compares the trained weights, unless an optimizer reduces over another process set."""
        weights = [
            weight
            for weight in self._model.trainable_variables
            if id(getattr(weight, "_value", weight)) not in self._local
        ]
        untouched = _state.local_weights(optimizers_of(self._model), weights)
        untouched += _state.between_exchanges(optimizers_of(self._model))
        local = {id(variable) for variable in untouched}
        own = digests([w for w in weights if id(w) not in local], "variable")

        sets = {tuple(one.options.process_set.ranks) for one in self._distributions()}
        sets.discard(tuple(self._process_set.ranks))
        lines = differences(
            {} if sets else own, "weights after the first update", self._process_set
        )
        if lines:
            shown = lines[:10] + (["and more"] if len(lines) > 10 else [])
            reason = "so their gradients were not reduced"
            if self._again:
                reason += ", or they differed before; a new callback broadcasts them again"
            self._warn(
                f"the ranks' weights differ after the first update, {reason}:\n  "
                + "\n  ".join(shown)
                + f"\n{_CAUSES}"
            )


def _reductions() -> int:
    counters = basics.stats()
    return counters["buckets"] + counters["collectives"]
