"""The callback that makes every rank report the metrics of all ranks."""

from __future__ import annotations

import warnings
from typing import Any

from smddp_tf._src.collectives.allreduce import allreduce
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf._src.job.reduce_op import Max
from smddp_tf.keras import _metrics
from smddp_tf.keras._distribution import innermost
from smddp_tf.keras.callbacks._base import Callback

tf = tensorflow()

# What evaluate() takes its results from, at its end: in Keras 3; in tf_keras and Keras 2.
_RESULTS = ("_get_metrics_result_or_logs", "_validate_and_get_metrics_result")


class _Evaluation:
    """Makes one call of model.evaluate() return the metrics of all ranks.

    Keras gives callbacks a copy of the logs, so what makes the logs is replaced on the model until
    it is called. If evaluate() fails before that, no callback is told; but fit() or the next
    evaluate() resets the metrics, and that ends this.
    """

    def __init__(self, model: Any, process_set: ProcessSet) -> None:
        self.model, self.process_set = model, process_set
        self.joined, self._resets = False, 0
        earlier = getattr(vars(model).get("reset_metrics"), "__self__", None)
        if isinstance(earlier, _Evaluation):
            earlier.end()
        self._method = next((name for name in _RESULTS if hasattr(model, name)), "")
        if not self._method:
            warnings.warn(
                "evaluate() of this Keras returns this rank's own metrics; hvd.evaluate() returns "
                "those of all ranks",
                RuntimeWarning,
                stacklevel=2,
            )
            return
        self._originals = {name: getattr(model, name) for name in (self._method, "reset_metrics")}
        # Not setattr(), which Keras would track.
        vars(model).update({self._method: self._results, "reset_metrics": self._reset_metrics})

    def end(self) -> None:
        """Gives the model its own methods back."""
        for name, mine in ((self._method, self._results), ("reset_metrics", self._reset_metrics)):
            if vars(self.model).get(name) == mine:
                del vars(self.model)[name]

    def _reset_metrics(self) -> Any:
        self._resets += 1
        if self._resets > 1:  # evaluate() does it once
            self.end()
        return self._originals["reset_metrics"]()

    def _results(self, logs: dict[str, Any] | None) -> dict[str, Any]:
        self.end()
        logs = dict(self._originals[self._method](logs))
        self.joined = True
        _metrics.replace(logs, _metrics.of_all_ranks(self.model, self.process_set))
        _metrics.average(logs, self.process_set)
        return logs


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
    they see the metrics of all ranks. With evaluate(callbacks=[...]), which all ranks must call,
    other callbacks see them, and evaluate() returns them.

    Args:
      device: ignored, accepted for compatibility.
      process_set: the ranks that take part; must include this rank.

    Raises:
      RuntimeError: the ranks' learning rates differ at the end of an epoch.
    """

    def __init__(self, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        del device
        check_process_set(process_set)
        self.process_set = process_set
        self._in_epoch = False
        self._around = False  # _in_epoch when set_params() was called: evaluate() inside an epoch
        self._trained: dict[str, Any] | None = None
        self._tested: dict[str, Any] | None = None
        self._before: dict[str, Any] | None = None
        self._evaluation: _Evaluation | None = None

    def set_params(self, params: dict[str, Any]) -> None:
        """Notices a fit() or evaluate() that begins, also after a fit() that was interrupted."""
        super().set_params(params)
        self._around, self._in_epoch = self._in_epoch, False

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Discards the previous epoch's results."""
        del epoch, logs
        self._in_epoch = True
        self._trained = self._tested = self._before = None

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Reduces the training metrics now, since validation resets them."""
        del logs
        if self._in_epoch:
            self._trained = self._joined()
        elif check_process_set(self.process_set).size > 1:
            if self._around:
                self._before = self._joined()
            self._evaluation = _Evaluation(self.model, self.process_set)

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Reduces the metrics of validation, or of an evaluate() that has not done so itself."""
        evaluation, self._evaluation = self._evaluation, None
        in_epoch, self._in_epoch = self._in_epoch, self._in_epoch or self._around
        if evaluation is not None and evaluation.joined:
            return
        self._tested = tested = self._joined()
        if not in_epoch and logs and check_process_set(self.process_set).size > 1:
            _metrics.replace(logs, tested)
            _metrics.average(logs, self.process_set)

    def on_predict_end(self, logs: dict[str, Any] | None = None) -> None:
        """Goes on with the epoch around a predict()."""
        del logs
        self._in_epoch = self._in_epoch or self._around

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Replaces the numbers in the logs."""
        del epoch
        self._in_epoch = False
        if self.process_set.size() == 1:
            return
        logs = {} if logs is None else logs
        if self._trained is None:
            # A callback may have called evaluate() since the last batch, or before it.
            _metrics.replace(logs, self._before or {})
            self._trained = self._joined()
        _metrics.replace(logs, self._trained)
        _metrics.replace(logs, self._tested or {}, "val_")
        _metrics.average(logs, self.process_set)
        self._check_learning_rate()

    def _joined(self) -> dict[str, Any]:
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
