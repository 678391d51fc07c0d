"""Keras callbacks: Horovod's, and versions of Keras's that write once or decide collectively.

Examples:
  >>> callbacks = [
  ...     hvd.callbacks.BroadcastGlobalVariablesCallback(0),
  ...     hvd.callbacks.MetricAverageCallback(),
  ...     hvd.callbacks.EarlyStopping("val_loss", patience=3),
  ... ]
"""

from smddp_tf.keras.callbacks._broadcast import BroadcastGlobalVariablesCallback
from smddp_tf.keras.callbacks._check import CheckRanksEqual
from smddp_tf.keras.callbacks._checkpoints import BackupAndRestore, BestModelCheckpoint, RankZero
from smddp_tf.keras.callbacks._gather import GatherState
from smddp_tf.keras.callbacks._learning_rate import (
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    ReduceLROnPlateau,
)
from smddp_tf.keras.callbacks._metrics import MetricAverageCallback
from smddp_tf.keras.callbacks._sharded_checkpoint import ShardedCheckpoint
from smddp_tf.keras.callbacks._stopping import AgreeOnStop, EarlyStopping, TerminateOnNaN
from smddp_tf.keras.callbacks._throughput import Throughput

__all__ = [
    "AgreeOnStop",
    "BackupAndRestore",
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "CheckRanksEqual",
    "EarlyStopping",
    "GatherState",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "RankZero",
    "ReduceLROnPlateau",
    "ShardedCheckpoint",
    "TerminateOnNaN",
    "Throughput",
]
