"""smdistributed.dataparallel.torch.parallel, of SMDDP 1."""

from torch.nn.parallel import DistributedDataParallel  # noqa: F401
