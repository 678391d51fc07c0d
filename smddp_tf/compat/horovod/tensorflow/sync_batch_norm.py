"""horovod.tensorflow.sync_batch_norm."""

from smddp_tf import SyncBatchNormalization  # noqa: F401
