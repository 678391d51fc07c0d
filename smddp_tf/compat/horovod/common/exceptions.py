"""horovod.common.exceptions, for scripts that refer to them; failures raise tf.errors instead."""

from smddp_tf.errors import HostsUpdatedInterrupt as HostsUpdatedInterrupt


class HorovodInternalError(RuntimeError):
    """Never raised: a failed collective raises an exception of tf.errors."""
