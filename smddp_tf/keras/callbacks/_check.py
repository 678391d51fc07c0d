"""Callbacks' checks that the ranks hold the same."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from smddp_tf._gradients.equality import differences, digests, require_equal
from smddp_tf._gradients.options import whole_number
from smddp_tf._job import basics
from smddp_tf._job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf._types import Variable
from smddp_tf.keras import _distribution
from smddp_tf.keras.callbacks import _state
from smddp_tf.keras.callbacks._base import Callback, optimizers_of

_CAUSES = (
    "Likely causes: an optimizer that is not wrapped by hvd.DistributedOptimizer (one of several, "
    "or one made anew from a configuration: clone_model, from_config, compile_from_config); a "
    "train_step that assigns weights itself, or passes the wrapped optimizer by; a step that was "
    "traced before the optimizer was wrapped. What is local on purpose is to be named: "
    "optimizer.register_local_var(variable), or local_variables= of the callback"
)


class CheckRanksEqual(Callback):
    """Raises, on all ranks, when the ranks no longer hold the same weights or options.

    After the first batch, every so many batches or epochs, and at the end of training it compares
    bits: weights that gradients train (frozen ones too), the optimizers' variables, learning rates,
    and what DistributedOptimizer was given. Its place among the callbacks does not matter. A check
    reads all these variables to hash them; over the network go a few bytes.

    Left out are what differs rightly: the state of random generators (each rank has dropout of its
    own), local variables, gradients of passes that were not applied yet, and what layers keep
    besides weights, as BatchNormalization its moving statistics, which are those of a rank's own
    batches until they are averaged.

    Args:
      every: "epoch", or a number of batches.
      also_statistics: compare moving statistics and the like too.
      local_variables: a list of further variables that may differ.
      process_set: the ranks that train this model together.

    Raises:
      TypeError, ValueError: every is neither.
      smddp_tf.errors.RanksDifferError: in training; it names the variables or options, and the
        ranks that differ from most.
    """

    _supports_tf_logs = True  # it needs none, so tf_keras need not wait for them

    def __init__(
        self,
        every: str | int = "epoch",
        also_statistics: bool = False,
        local_variables: Iterable[Variable] | None = None,
        process_set: ProcessSet = global_process_set,
    ):
        super().__init__()
        check_process_set(process_set)
        self.every = every if every == "epoch" else whole_number("every", every, 1)
        self.also_statistics = also_statistics
        self.local_variables = list(local_variables or [])
        self.process_set = process_set
        self._epochs_before = 0  # batches of the epochs that have ended
        self._batches = 0
        self._checked = -1  # at so many batches

    def on_train_begin(self, logs: dict | None = None):
        """Begins to count."""
        del logs
        self._epochs_before, self._batches, self._checked = 0, 0, -1

    def on_train_batch_end(self, batch: int, logs: dict | None = None):
        """Checks when it is due."""
        del logs
        before, self._batches = self._batches, self._epochs_before + batch + 1
        if before == 0:
            self._check("after the first batch")
        elif self.every != "epoch" and self._batches // self.every > before // self.every:
            self._check(f"after {self._batches} batches")

    def on_epoch_end(self, epoch: int, logs: dict | None = None):
        """Checks, unless that is done every so many batches."""
        del logs
        self._epochs_before = self._batches
        if self.every == "epoch":
            self._check(f"after epoch {epoch + 1}")

    def on_train_end(self, logs: dict | None = None):
        """Checks the final weights."""
        del logs
        self._checked = -1  # averages of weights may have taken their place
        self._check("at the end of training")

    def _check(self, when: str) -> None:
        if self._checked == self._batches or self.process_set.size() == 1:
            return
        self._checked = self._batches
        own = _state.everything(self.model, self.local_variables, self.also_statistics)
        require_equal(own, f"CheckRanksEqual {when}", self.process_set, when)


class FirstUpdate:
    """Warns, once, if the first update of a model left the ranks with different weights.

    Args:
      model: the model, whose ranks were equal when training began.
      local: identities of variables that differ rightly.
      process_set: the ranks that were made equal.
    """

    def __init__(self, model, local: set, process_set=global_process_set) -> None:
        self._model, self._local, self._process_set = model, local, process_set
        self._counted = _reductions()
        self._seen, self._in_epoch = 0, 0  # batches
        self._due: int | None = None  # after so many there was an update
        self._warned = False

    def look(self, batch: int) -> bool:
        """At the end of a batch: looks, if that is due. Returns whether all is done."""
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

    def _distributions(self) -> list:
        found = map(_distribution.of, optimizers_of(self._model))
        return [distribution for distribution in found if distribution is not None]

    def _batches_of_an_update(self) -> int:
        passes = [distribution.passes for distribution in self._distributions()]
        inner = _distribution.innermost(getattr(self._model, "optimizer", None))
        return max([*passes, getattr(inner, "gradient_accumulation_steps", None) or 1])

    def _look_at_counters(self) -> None:
        waits = self._batches_of_an_update() > 1
        if _reductions() > self._counted or (waits and self._distributions()):
            return
        advice = "Wrap the optimizer before compile(): optimizer = hvd.DistributedOptimizer(...)"
        if self._distributions():
            advice = _CAUSES
        self._warn(
            "the first batch reduced no gradients: every rank trains a model of its own. " + advice
        )

    def _look_at_weights(self) -> None:
        """Compares what the ranks of one optimizer's process set must have alike."""
        weights = [
            weight
            for weight in self._model.trainable_variables
            if id(getattr(weight, "_value", weight)) not in self._local
        ]
        local = _state.local_weights(optimizers_of(self._model), weights)
        local = {id(variable) for variable in local}
        own = digests([w for w in weights if id(w) not in local], "variable")
        sets = {tuple(one.options.process_set.ranks) for one in self._distributions()}
        sets.discard(tuple(self._process_set.ranks))
        lines = differences(
            {} if sets else own, "weights after the first update", self._process_set
        )
        if lines:
            shown = lines[:10] + (["and more"] if len(lines) > 10 else [])
            self._warn(
                "the ranks' weights differ after the first update, so their gradients were not "
                "reduced:\n  " + "\n  ".join(shown) + f"\n{_CAUSES}"
            )


def _reductions() -> int:
    counters = basics.stats()
    return counters["buckets"] + counters["collectives"]
