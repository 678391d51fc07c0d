"""horovod.keras.elastic: smddp_tf.keras.elastic under its name."""

from smddp_tf.keras.elastic import *  # noqa: F403
from smddp_tf.keras.elastic import __all__  # noqa: F401
