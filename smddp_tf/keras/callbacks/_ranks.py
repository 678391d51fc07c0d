"""Callbacks that must act on one rank only, or on all ranks alike."""

import os

from smddp_tf import _collectives, _native, _runtime
from smddp_tf._reduce_op import Max, Sum
from smddp_tf.keras.callbacks._base import Callback

tf = _native.tensorflow()


def RankZero(callback):  # noqa: N802 - used like a callback class
    """Gives the callback to rank 0 alone; other ranks get one that does nothing.

    For whatever writes or prints: ProgbarLogger, TensorBoard, ModelCheckpoint, CSVLogger. Not for
    callbacks that change training (early stopping, learning rate): those must act on all ranks.

    Args:
      callback: any Keras callback.

    Returns:
      The callback itself on rank 0.
    """
    return callback if _runtime.rank() == 0 else Callback()


def BestModelCheckpoint(  # noqa: N802 - Horovod's name
    monitor="val_loss",
    verbose=0,
    save_weights_only=False,
    mode="auto",
    save_freq="epoch",
    filepath="best.keras",
):
    """Saves, on rank 0, the model of the epoch with the best metric.

    Put it after MetricAverageCallback, so that "best" is that of all ranks.

    Args:
      monitor: the metric.
      verbose: 1: say when it saves.
      save_weights_only: weights instead of the model.
      mode: "min", "max" or "auto".
      save_freq: "epoch", or a number of batches.
      filepath: where; {epoch} and metrics may be in it, as for Keras's ModelCheckpoint.

    Returns:
      A callback: Keras's ModelCheckpoint on rank 0.
    """
    if _runtime.rank() != 0:
        return Callback()
    return tf.keras.callbacks.ModelCheckpoint(
        os.fspath(filepath),
        monitor=monitor,
        verbose=verbose,
        save_best_only=True,
        save_weights_only=save_weights_only,
        mode=mode,
        save_freq=save_freq,
    )


class EarlyStopping(tf.keras.callbacks.EarlyStopping):
    """Keras's EarlyStopping, on the metric's average over all ranks.

    All ranks stop in the same epoch; also when another callback set model.stop_training on some of
    them. Ranks that do not have the metric (validation on rank 0 only) go by those that have it.
    Takes the arguments of tf.keras.callbacks.EarlyStopping.
    """

    def get_monitor_value(self, logs):
        """The metric, averaged over the ranks that have it."""
        value = (logs or {}).get(self.monitor)
        if _runtime.size() == 1:
            return super().get_monitor_value(logs)
        own = tf.constant([0.0, 0.0] if value is None else [float(value), 1.0], tf.float64)
        total, count = _collectives.allreduce(own, op=Sum, name=f"monitor {self.monitor}").numpy()
        return float(total / count) if count else super().get_monitor_value(logs)

    def on_epoch_end(self, epoch, logs=None):
        """Decides, and agrees."""
        super().on_epoch_end(epoch, logs)
        if _runtime.size() > 1:
            stop = tf.constant(int(bool(self.model.stop_training)))
            self.model.stop_training = bool(
                _collectives.allreduce(stop, op=Max, name="stop training")
            )
