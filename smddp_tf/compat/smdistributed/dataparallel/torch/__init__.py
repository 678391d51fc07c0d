"""smdistributed.dataparallel.torch: SMDDP 1's questions, and its modules."""

from smddp_tf.compat.environment import adopt_torch_environment
from smddp_tf.compat.smdistributed.dataparallel.torch.distributed import (  # noqa: F401
    get_local_rank,
    get_rank,
    get_world_size,
)

adopt_torch_environment()  # for scripts that install the names themselves, without --alias
