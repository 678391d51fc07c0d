"""As SageMaker's guide for its first library shows it: distributed and parallel are its own."""

import smdistributed.dataparallel.torch.distributed as dist
import torch
import torch.nn as nn
from smdistributed.dataparallel.torch.parallel import DistributedDataParallel as DDP

dist.init_process_group()
assert dist.is_initialized()
rank, local_rank, world_size = dist.get_rank(), dist.get_local_rank(), dist.get_world_size()
torch.manual_seed(rank)
model = DDP(nn.Linear(8, 1), broadcast_buffers=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.randn(32, 8, generator=torch.Generator().manual_seed(rank))
for _ in range(5):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
weights = model.module.weight.detach().clone()
dist.broadcast(weights, src=0)
total = torch.ones(1)
dist.all_reduce(total, op=dist.ReduceOp.SUM)
dist.barrier()
equal = torch.equal(weights, model.module.weight)
print(f"rank {rank} local {local_rank} equal {equal} sum {total.item() == world_size}")
