"""horovod's top level."""

from smddp_tf.compat._install import refuse_names

__version__ = "0.28.1"  # the Horovod version whose API is mirrored

REFUSED = {"run": "launch the script with smddprun -np N"}

__getattr__ = refuse_names("horovod", REFUSED)
