"""horovod.torch.optimizer."""

from smddp_tf.torch import DistributedOptimizer
