"""Keras callbacks: Horovod's, and some of our own."""

from smddp_tf.keras.callbacks._check import CheckRanksEqual
from smddp_tf.keras.callbacks._learning_rate import (
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
)
from smddp_tf.keras.callbacks._ranks import BestModelCheckpoint, EarlyStopping, RankZero
from smddp_tf.keras.callbacks._sync import BroadcastGlobalVariablesCallback, MetricAverageCallback
from smddp_tf.keras.callbacks._throughput import Throughput

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "CheckRanksEqual",
    "EarlyStopping",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "RankZero",
    "Throughput",
]
