"""Data-parallel Keras training: ``import smddp_tf.keras as hvd`` and three changed lines.

Works with Keras 3, tf_keras and Keras 2, whichever TensorFlow uses. docs/keras.md is the guide.
"""

from smddp_tf import *  # noqa: F403
from smddp_tf.keras._optimizer import DistributedOptimizer, PartialDistributedOptimizer
