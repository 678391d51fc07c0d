"""horovod.common.exceptions, for scripts that name them; failures come as TensorFlow's classes."""


class HorovodInternalError(RuntimeError):
    """Never raised: a failed collective raises a class of tf.errors."""


class HostsUpdatedInterrupt(RuntimeError):
    """Never raised: a job keeps its ranks."""
