"""PyTorch on the same core.

Importing this package registers the backend "smddp" with torch.distributed. It also sets RANK,
WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT where the launcher has not;
under plain mpirun it therefore waits for the other ranks. TensorFlow need not be installed.

Examples:
  >>> import torch, torch.distributed as dist
  >>> import smddp_tf.torch
  >>> dist.init_process_group("smddp")
  >>> ones = torch.ones(3)
  >>> dist.all_reduce(ones)
  >>> ones.tolist() == 3 * [dist.get_world_size()]
  True
"""

from smddp_tf.torch import _backend, _environment

_backend.register()
_environment.adopt_ranks()
_environment.agree_on_master()

__all__: list[str] = []
