"""smddp_tf under the name by which Horovod's scripts reach ops and queries: hvd.mpi_ops.Sum."""

from smddp_tf import *  # noqa: F403
from smddp_tf import __all__  # noqa: F401
