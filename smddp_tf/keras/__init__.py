"""Data-parallel Keras training: ``import smddp_tf.keras as hvd`` and three changed lines.

Works with Keras 3, tf_keras and Keras 2, whichever TensorFlow uses. See docs/keras.md.
"""

# ruff: noqa: E402 - what follows derives from Keras's classes, so it is checked first
from smddp_tf.keras._backend import require_tensorflow

require_tensorflow()

import smddp_tf
from smddp_tf import *  # noqa: F403 - Horovod's Keras module has these names too
from smddp_tf.keras import callbacks, elastic
from smddp_tf.keras._adapt import adapt
from smddp_tf.keras._batch_norm import average_batch_normalization
from smddp_tf.keras._evaluate import evaluate, predict
from smddp_tf.keras._load import load_model
from smddp_tf.keras._optimizer import DistributedOptimizer, PartialDistributedOptimizer
from smddp_tf.keras._shard import shard
from smddp_tf.keras._sync_batch_norm import SyncBatchNormalization

__all__ = [
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "SyncBatchNormalization",
    "adapt",
    "average_batch_normalization",
    "callbacks",
    "elastic",
    "evaluate",
    "load_model",
    "predict",
    "shard",
]
__all__ += smddp_tf.__all__
