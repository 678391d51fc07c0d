"""horovod.torch.sync_batch_norm."""

from smddp_tf.torch import SyncBatchNorm
