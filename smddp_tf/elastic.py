"""smddp_tf.keras.elastic under the name that it has in Horovod's TensorFlow module."""

from smddp_tf.keras.elastic import *  # noqa: F403
from smddp_tf.keras.elastic import __all__  # noqa: F401
