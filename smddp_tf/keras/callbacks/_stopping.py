"""Callbacks that end training on all ranks in the same batch or epoch."""

from __future__ import annotations

import math

from smddp_tf._collectives.allreduce import allreduce
from smddp_tf._graph.framework import tensorflow
from smddp_tf._job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf._job.reduce_op import Max, Sum
from smddp_tf.keras.callbacks._base import Callback, OnProcessSet

tf = tensorflow()


def _any_rank(flag: bool, name: str, process_set) -> bool:
    if process_set.size() == 1:
        return flag
    own = tf.constant(int(flag))
    return bool(allreduce(own, op=Max, name=name, process_set=process_set))


def monitored(logs, monitor: str, process_set):
    """The metric's average over the ranks that have it; None if none has it."""
    value = (logs or {}).get(monitor)
    if process_set.size() == 1:
        return value
    own = tf.constant([0.0, 0.0] if value is None else [float(value), 1.0], tf.float64)
    total, count = allreduce(
        own, op=Sum, name=f"monitor {monitor}", process_set=process_set
    ).numpy()
    return float(total / count) if count else None


class EarlyStopping(OnProcessSet, tf.keras.callbacks.EarlyStopping):
    """Keras's EarlyStopping, on the metric's average over all ranks.

    All ranks stop in the same epoch; also when another callback set model.stop_training on some of
    them at the end of an epoch. Ranks that do not have the metric (validation on rank 0 only) go by
    those that have it. After MetricAverageCallback the average is the metric of all ranks.

    Args:
      *args: as for tf.keras.callbacks.EarlyStopping.
      process_set: the ranks that take part; must include this rank.
      **options: as for tf.keras.callbacks.EarlyStopping.
    """

    def get_monitor_value(self, logs: dict | None):
        """The metric, averaged over the ranks that have it."""
        value = monitored(logs, self.monitor, self.process_set)
        return super().get_monitor_value(logs) if value is None else value

    def on_epoch_end(self, epoch: int, logs: dict | None = None):
        """Decides, and agrees."""
        super().on_epoch_end(epoch, logs)
        stop = bool(self.model.stop_training)
        self.model.stop_training = _any_rank(stop, "stop training", self.process_set)


class AgreeOnStop(Callback):
    """Ends training on all ranks once model.stop_training is set on one of them, in an epoch too.

    For stops of your own: a time limit, a signal, a condition on this rank's loss. Ranks that went
    on alone would wait for the one that stopped. Put it last in the list.

    Args:
      every: agree after so many batches; a stop takes effect then. Each time costs one small
        allreduce. With steps_per_execution, so many executions.
      process_set: the ranks that take part; must include this rank.

    Raises:
      ValueError: every is not positive.
    """

    def __init__(self, every: int = 1, process_set: ProcessSet = global_process_set):
        super().__init__()
        if int(every) < 1:
            raise ValueError(f"every={every!r} is no number of batches >= 1")
        check_process_set(process_set)
        self.every, self.process_set = int(every), process_set
        self._batches, self._wanted = 0, False

    def on_train_begin(self, logs: dict | None = None):
        """Counts from 0 on all ranks."""
        del logs
        self._batches, self._wanted = 0, False

    def _wants_to_stop(self, logs) -> bool:
        del logs
        return bool(self.model.stop_training)

    def on_train_batch_end(self, batch: int, logs: dict | None = None):
        """Notes a wish to stop; agrees if it is time to."""
        del batch
        self._batches += 1
        self._wanted |= self._wants_to_stop(logs)
        self.model.stop_training = False
        if self._batches % self.every == 0:
            self._agree()

    def on_epoch_end(self, epoch: int, logs: dict | None = None):
        """Agrees on what was noted since, and on what other callbacks want now."""
        del epoch, logs
        self._wanted |= bool(self.model.stop_training)
        self._agree()

    def _agree(self) -> None:
        stop = _any_rank(self._wanted, type(self).__name__, self.process_set)
        self._wanted = self.model.stop_training = stop


class TerminateOnNaN(AgreeOnStop):
    """Ends training on all ranks, in the same batch, when the loss of one is NaN or infinite.

    With Keras's own, the rank that saw it would stop alone, and the others wait for it. Put it
    after other callbacks that stop training; then it is an AgreeOnStop for them, too.

    Args:
      every: look after so many batches, as for AgreeOnStop.
      process_set: the ranks that take part; must include this rank.
    """

    def _wants_to_stop(self, logs) -> bool:
        loss = (logs or {}).get("loss")
        invalid = loss is not None and not math.isfinite(float(loss))
        return invalid or super()._wants_to_stop(logs)

    def _agree(self) -> None:
        super()._agree()
        if self.model.stop_training and self.process_set.rank() == 0:
            print("\nTerminateOnNaN: training ends on all ranks.")
