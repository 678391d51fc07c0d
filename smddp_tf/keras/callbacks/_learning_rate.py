"""Learning rate schedules, warm-up and reduction on a plateau.

Warm-up and momentum correction follow Goyal et al., Accurate, Large Minibatch SGD (2017).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job import basics
from smddp_tf._src.job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf._src.types import LoadedClass, Variable
from smddp_tf.keras._distribution import innermost
from smddp_tf.keras.callbacks._base import Callback, OnProcessSet, fix_steps_per_execution
from smddp_tf.keras.callbacks._stopping import monitored

tf = tensorflow()


def _velocities(optimizer: Any) -> list[Variable]:
    """The momentum variables that accumulate gradients times the learning rate."""
    names = {kind.__name__ for kind in type(optimizer).__mro__}
    if "SGD" not in names:
        return []  # other optimizers do not multiply their momentum by the rate
    if hasattr(optimizer, "get_slot"):  # legacy
        return [v for v in optimizer.variables() if v.name.split(":")[0].endswith("/momentum")]
    return [v for v in getattr(optimizer, "momentums", None) or [] if v is not None]


def _steps_per_execution(model: Any) -> int:
    """The number of batches per execution: a rate set before one applies to all of them."""
    steps = getattr(model, "_steps_per_execution", None)  # tf_keras: a variable, or None
    if steps is None:
        steps = getattr(model, "steps_per_execution", None)
    return max(1, int(tf.convert_to_tensor(1 if steps is None else steps)))


class LearningRateScheduleCallback(Callback):
    """Multiplies the learning rate by a factor that depends on the epoch.

    Args:
      initial_lr: the learning rate that is multiplied.
      multiplier: a number, which is a constant factor, or a function of the epoch (fractional
        unless staircase=True). Horovod 0.23 to 0.28 raise a number to the power of the epochs
        since start_epoch, so one other than 1 warns.
      start_epoch: the first epoch in which the schedule applies.
      end_epoch: the first epoch in which it no longer applies; None: it always does.
      staircase: change the rate at the start of each epoch only, instead of before every batch.
      momentum_correction: when the rate changes, rescale SGD's momentum, as if it had been
        accumulated at the new rate.
      steps_per_epoch: batches per epoch; required without staircase if Keras does not know it.

    Raises:
      ValueError: at the start of training: the optimizer has its own schedule, or steps_per_epoch
        is required.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("initial_lr", initial_lr), ("multiplier", multiplier)):
            if not hasattr(value, "__float__") and not (name == "multiplier" and callable(value)):
                raise TypeError(f"{name}={value!r} is not a number")
        if not callable(multiplier) and multiplier not in (0, 1):
            warnings.warn(
                f"{type(self).__name__}: multiplier={multiplier} is a constant factor from epoch "
                f"{start_epoch} on; Horovod 0.23 to 0.28 take it as a decay per epoch. Give a "
                f"function instead: lambda epoch: {multiplier}, or lambda epoch: {multiplier} ** "
                f"(epoch - {start_epoch})",
                RuntimeWarning,
                stacklevel=2,
            )
        self.initial_lr = initial_lr
        self.multiplier = multiplier if callable(multiplier) else lambda epoch: multiplier
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        # A constant multiplier needs no update per batch.
        self.staircase = staircase or not callable(multiplier)
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self._steps = steps_per_epoch or 0  # of this fit(); on_train_begin() finds it
        self.epoch = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Checks that the learning rate can be set."""
        del logs
        rate = getattr(innermost(self.model.optimizer), "_learning_rate", None)
        if callable(rate) and not isinstance(rate, tf.Variable) and not hasattr(rate, "assign"):
            raise ValueError(
                f"{type(self).__name__} sets the learning rate, but the optimizer has a schedule "
                f"of its own ({type(rate).__name__}); use one of them"
            )
        fix_steps_per_execution(self.model)
        if not self.staircase:
            self._steps = self.steps_per_epoch or (self.params or {}).get("steps") or 0
            if not self._steps:
                raise ValueError(
                    f"{type(self).__name__} needs steps_per_epoch: Keras does not know how many "
                    "batches this dataset has"
                )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Records the epoch."""
        del logs
        self.epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Sets the rate."""
        super().on_train_batch_begin(batch, logs)  # on_batch_begin(), which scripts replace
        if self.epoch < self.start_epoch:
            return
        if self.end_epoch is not None and self.epoch >= self.end_epoch:
            return
        if not self.staircase:
            self._set(self.initial_lr * self.multiplier(self._position(batch)))
        elif batch == 0:
            self._set(self.initial_lr * self.multiplier(self.epoch))

    def _position(self, batch: int) -> float:
        """The epoch, as a float."""
        return self.epoch + batch / self._steps

    def _set(self, rate: float) -> None:
        optimizer = innermost(self.model.optimizer)
        before = float(tf.convert_to_tensor(optimizer.learning_rate))
        if before == rate:
            return
        optimizer.learning_rate = rate
        if self.momentum_correction and before > 0:
            for velocity in _velocities(optimizer):
                velocity.assign(velocity * (rate / before))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the learning rate to the logs."""
        del epoch
        if logs is not None:
            logs["lr"] = float(tf.convert_to_tensor(innermost(self.model.optimizer).learning_rate))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from initial_lr / size() to initial_lr over the first epochs.

    Args:
      initial_lr: the rate after warm-up, usually the single-process rate times size().
      warmup_epochs: the number of epochs over which the rate rises.
      momentum_correction: same as for LearningRateScheduleCallback.
      steps_per_epoch: same as for LearningRateScheduleCallback.
      verbose: 1: print a line on rank 0 when warm-up is done.
      process_set: the ranks whose number is used as size().
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        check_process_set(process_set)

        def multiplier(epoch: float) -> float:
            ranks = check_process_set(process_set).size
            return min(1.0, (1 + epoch * (ranks - 1) / warmup_epochs) / ranks)

        super().__init__(
            initial_lr,
            multiplier,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose

    def _position(self, batch: int) -> float:
        """The epoch at the end of this execution, so that the last batches use the full rate."""
        last = min(batch + _steps_per_execution(self.model), self._steps)
        return self.epoch + last / self._steps

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the learning rate to the logs, and prints when warm-up is done."""
        super().on_epoch_end(epoch, logs)
        if epoch == self.warmup_epochs - 1 and self.verbose and basics.rank() == 0:
            rate = float(tf.convert_to_tensor(innermost(self.model.optimizer).learning_rate))
            print(f"\nEpoch {epoch + 1}: learning rate warm-up is done, at {rate:g}.")


_Plateau: LoadedClass = tf.keras.callbacks.ReduceLROnPlateau


class ReduceLROnPlateau(OnProcessSet, _Plateau):
    """Keras's ReduceLROnPlateau, monitoring the metric's average over all ranks.

    All ranks reduce the rate at the same time. After MetricAverageCallback the average is the
    metric of all ranks.

    Args:
      *args: same as for tf.keras.callbacks.ReduceLROnPlateau.
      process_set: the ranks that take part; must include this rank.
      **options: same as for tf.keras.callbacks.ReduceLROnPlateau.
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Decides by the average over the ranks."""
        logs = {} if logs is None else logs
        value = monitored(logs, self.monitor, self.process_set)
        agreed = dict(logs) if value is None else {**logs, self.monitor: value}
        super().on_epoch_end(epoch, agreed)
        logs.update({name: one for name, one in agreed.items() if name not in logs})
