"""As SageMaker's guide for its first library shows it: distributed and parallel are its own."""

import sys

import smdistributed.dataparallel.torch as smddp
import smdistributed.dataparallel.torch.distributed as dist
import torch
import torch.nn as nn
from smdistributed.dataparallel.torch.parallel import DistributedDataParallel as TheSame
from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel as DDP

if not dist.is_available():
    sys.exit("alone")
device = dist.get_local_rank()  # scripts choose their GPU by it before anything else
assert not dist.is_initialized()
dist.init_process_group(backend="nccl", init_method="env://")
assert dist.is_initialized() and DDP is TheSame
rank, local_rank, world_size = dist.get_rank(), dist.get_local_rank(), dist.get_world_size()
assert device == local_rank == smddp.get_local_rank()
assert (rank, world_size) == (smddp.get_rank(), smddp.get_world_size())
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
mean = torch.tensor([float(rank)])
dist.all_reduce(mean, op=dist.ReduceOp.AVERAGE, group=dist.group.WORLD)
assert mean.item() == (world_size - 1) / 2, mean
dist.barrier()
equal = torch.equal(weights, model.module.weight)
gathered = [torch.empty(1) for _ in range(world_size)]
dist.all_gather(gathered, torch.tensor([float(rank)]))
assert [one.item() for one in gathered] == list(range(world_size)), gathered
swapped = torch.empty(world_size)
dist.all_to_all_single(swapped, torch.full((world_size,), float(rank)))
assert swapped.tolist() == list(range(world_size)), swapped
backend = dist.get_backend()
dist.destroy_process_group()
print(f"rank {rank} local {local_rank} equal {equal} sum {total.item() == world_size} {backend}")
