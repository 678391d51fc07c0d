"""smdistributed.dataparallel.torch.parallel.distributed: where SMDDP 1's scripts import it from."""

from torch.nn.parallel import DistributedDataParallel  # noqa: F401
