"""smdistributed.dataparallel.tensorflow.keras.callbacks."""

from smddp_tf.keras.callbacks import *  # noqa: F403
