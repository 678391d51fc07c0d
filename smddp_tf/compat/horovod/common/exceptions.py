"""horovod.common.exceptions, for scripts that refer to them; failures raise tf.errors instead."""


class HorovodInternalError(RuntimeError):
    """Never raised: a failed collective raises an exception of tf.errors."""


class HostsUpdatedInterrupt(RuntimeError):
    """Never raised: the ranks of a job are fixed."""
