"""Keras callbacks: Horovod's, and three of our own (RankZero, EarlyStopping, Throughput)."""

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
    "EarlyStopping",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "RankZero",
    "Throughput",
]
