"""The callback that makes every rank report the metrics of all ranks."""

from __future__ import annotations

from smddp_tf._collectives.allreduce import allreduce
from smddp_tf._graph.framework import tensorflow
from smddp_tf._job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf._job.reduce_op import Max
from smddp_tf.keras import _metrics
from smddp_tf.keras._distribution import innermost
from smddp_tf.keras.callbacks._base import Callback

tf = tensorflow()


class MetricAverageCallback(Callback):
    """Replaces the epoch's metrics, on every rank, by those of all ranks together.

    The state of Keras metrics (a total and a count, the counts of a confusion matrix) is summed
    over the ranks and the metrics are computed from the sums, so AUC, Recall or F1 equal those of a
    single process. All other numbers in the logs are averaged over the ranks.

    A custom metric is treated the same way if all its state variables were created with add_weight
    or add_variable and aggregation "sum" (the default) or "mean". To override that, set the
    metric's attribute `across_ranks` to how its state is reduced ("sum", "mean", "max" or "min"),
    or to "average" to average its results; results are also averaged if some state has neither
    aggregation.

    Put it before callbacks that use metrics (checkpoints, early stopping, learning rate), so that
    they see the metrics of all ranks. It also works in evaluate(callbacks=[...]), if all ranks call
    it.

    Args:
      device: ignored, accepted for compatibility.
      process_set: the ranks that take part; must include this rank.

    Raises:
      RuntimeError: the ranks' learning rates differ at the end of an epoch.
    """

    def __init__(self, device: str = "", process_set: ProcessSet = global_process_set):
        super().__init__()
        del device
        check_process_set(process_set)
        self.process_set = process_set
        self._in_epoch = False
        self._trained = self._tested = None

    def on_epoch_begin(self, epoch: int, logs: dict | None = None):
        """Discards the previous epoch's results."""
        del epoch, logs
        self._in_epoch = True
        self._trained = self._tested = None

    def on_test_begin(self, logs: dict | None = None):
        """Reduces the training metrics now, since validation resets them."""
        del logs
        if self._in_epoch:
            self._trained = self._joined()

    def on_test_end(self, logs: dict | None = None):
        """Reduces the metrics of validation, or of evaluate()."""
        self._tested = self._joined()
        if not self._in_epoch and logs and self.process_set.size() > 1:
            _metrics.replace(logs, self._tested)
            _metrics.average(logs, self.process_set)

    def on_epoch_end(self, epoch: int, logs: dict | None = None):
        """Replaces the numbers in the logs."""
        del epoch
        self._in_epoch = False
        if self.process_set.size() == 1:
            return
        trained = self._trained or self._joined()
        logs = {} if logs is None else logs
        _metrics.replace(logs, trained)
        _metrics.replace(logs, self._tested or {}, "val_")
        _metrics.average(logs, self.process_set)
        self._check_learning_rate()

    def _joined(self) -> dict:
        if self.process_set.size() == 1:
            return {}
        return _metrics.of_all_ranks(self.model, self.process_set)

    def _check_learning_rate(self) -> None:
        """Detects an earlier callback that changed the rate based on this rank's own metrics."""
        rate = getattr(innermost(getattr(self.model, "optimizer", None)), "learning_rate", None)
        own = float(tf.convert_to_tensor(0.0 if rate is None or callable(rate) else rate))
        extremes = allreduce(
            tf.constant([own, -own], tf.float64),
            op=Max,
            name="learning rate",
            process_set=self.process_set,
        ).numpy()
        high, low = float(extremes[0]), -float(extremes[1])
        if low != high:
            raise RuntimeError(
                f"the ranks' learning rates differ: {own:g} here, from {low:g} to {high:g}. A "
                "callback that changes it by metrics (ReduceLROnPlateau) must come after "
                "MetricAverageCallback, or be hvd.callbacks.ReduceLROnPlateau"
            )
