"""horovod's top level."""

from smddp_tf.compat.horovod.runner import run

__version__ = "0.28.1"  # the Horovod version whose API is mirrored
