"""smddp_tf.keras.elastic under the name that it has in Horovod's TensorFlow module.

Examples:
  >>> state = hvd.elastic.ObjectState(epoch=0)
  >>> state.epoch += 1
  >>> state.commit()
  >>> state.epoch
  1
"""

from smddp_tf.keras.elastic import *  # noqa: F403
from smddp_tf.keras.elastic import __all__  # noqa: F401
