"""Callbacks that stop training on all ranks in the same batch or epoch."""

from __future__ import annotations

import math
from typing import Any

from smddp_tf._src.collectives.allreduce import allreduce
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf._src.job.reduce_op import Max, Sum
from smddp_tf._src.types import LoadedClass
from smddp_tf.keras.callbacks._base import Callback, OnProcessSet

tf = tensorflow()


def _any_rank(flag: bool, name: str, process_set: ProcessSet) -> bool:
    if process_set.size() == 1:
        return flag
    own = tf.constant(int(flag))
    return bool(allreduce(own, op=Max, name=name, process_set=process_set))


def monitored(logs: dict[str, Any] | None, monitor: str, process_set: ProcessSet) -> float | None:
    """The metric's average over the ranks that report it; None if no rank does."""
    value = (logs or {}).get(monitor)
    if process_set.size() == 1:
        return value
    own = tf.constant([0.0, 0.0] if value is None else [float(value), 1.0], tf.float64)
    total, count = allreduce(
        own, op=Sum, name=f"monitor {monitor}", process_set=process_set
    ).numpy()
    return float(total / count) if count else None


_EarlyStopping: LoadedClass = tf.keras.callbacks.EarlyStopping


class EarlyStopping(OnProcessSet, _EarlyStopping):
    """Keras's EarlyStopping, monitoring the metric's average over all ranks.

    All ranks stop in the same epoch, even if another callback sets model.stop_training on only some
    of them at the end of an epoch. Ranks without the metric (if only rank 0 validates) follow those
    that have it. After MetricAverageCallback the average is the metric of all ranks.

    Args:
      *args: same as for tf.keras.callbacks.EarlyStopping.
      process_set: the ranks that take part; must include this rank.
      **options: same as for tf.keras.callbacks.EarlyStopping.
    """

    def get_monitor_value(self, logs: dict[str, Any] | None) -> Any:
        """The metric, averaged over the ranks that report it."""
        value = monitored(logs, self.monitor, self.process_set)
        return super().get_monitor_value(logs) if value is None else value

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Runs Keras's check, then stops on all ranks if any rank wants to."""
        super().on_epoch_end(epoch, logs)
        stop = bool(self.model.stop_training)
        self.model.stop_training = _any_rank(stop, "stop training", self.process_set)


class AgreeOnStop(Callback):
    """Stops training on all ranks once any rank sets model.stop_training, also within an epoch.

    For custom stop conditions: a time limit, a signal, a condition on this rank's loss. Without it
    the other ranks would keep waiting for the one that stopped. Put it last in the list.

    Args:
      every: agree every this many batches (or executions, with steps_per_execution), at the cost
        of one small allreduce; a stop takes effect at the next agreement.
      process_set: the ranks that take part; must include this rank.

    Raises:
      ValueError: every is not positive.
    """

    def __init__(self, every: int = 1, process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        if not hasattr(every, "__index__") or every < 1:
            raise ValueError(f"every={every!r} is not a number of batches >= 1")
        check_process_set(process_set)
        self.every, self.process_set = int(every), process_set
        self._batches, self._wanted = 0, False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Resets the batch count, so that all ranks agree at the same batches."""
        del logs
        self._batches, self._wanted = 0, False

    def _wants_to_stop(self, logs: dict[str, Any] | None) -> bool:
        del logs
        return bool(self.model.stop_training)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Records a request to stop; agrees when `every` batches have passed."""
        del batch
        self._batches += 1
        self._wanted |= self._wants_to_stop(logs)
        self.model.stop_training = False
        if self._batches % self.every == 0:
            self._agree()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Agrees on requests since the last agreement, including other callbacks' at epoch end."""
        del epoch, logs
        self._wanted |= bool(self.model.stop_training)
        self._agree()

    def _agree(self) -> None:
        stop = _any_rank(self._wanted, type(self).__name__, self.process_set)
        self._wanted = self.model.stop_training = stop


class TerminateOnNaN(AgreeOnStop):
    """Stops training on all ranks, in the same batch, when any rank's loss is NaN or infinite.

    With Keras's own callback, only the affected rank would stop, and the others would wait for it.
    It also acts as an AgreeOnStop: put it after other callbacks that stop training.

    Args:
      every: agree every this many batches, same as for AgreeOnStop.
      process_set: the ranks that take part; must include this rank.
    """

    def _wants_to_stop(self, logs: dict[str, Any] | None) -> bool:
        loss = (logs or {}).get("loss")
        invalid = loss is not None and not math.isfinite(float(loss))
        return invalid or super()._wants_to_stop(logs)

    def _agree(self) -> None:
        super()._agree()
        if self.model.stop_training and self.process_set.rank() == 0:
            print("\nTerminateOnNaN: training ends on all ranks.")
