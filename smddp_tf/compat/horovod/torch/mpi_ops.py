"""horovod.torch.mpi_ops."""

from smddp_tf.torch import *  # noqa: F403
