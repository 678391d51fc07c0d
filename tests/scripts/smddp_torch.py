"""As SageMaker's guide for its second library shows it: the import registers the backend."""

import os

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group(backend="smddp")
rank, world_size = dist.get_rank(), dist.get_world_size()
local_rank = int(os.environ["LOCAL_RANK"])

torch.manual_seed(rank)
inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
sampler = DistributedSampler(data, num_replicas=world_size, rank=rank)
loader = DataLoader(data, batch_size=64 // world_size, sampler=sampler)
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
losses = []
for epoch in range(20):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
others = [torch.empty_like(weights) for _ in range(world_size)]
dist.all_gather(others, weights)
equal = all(torch.equal(weights, one) for one in others)
print(f"rank {rank} local {local_rank} equal {equal} better {losses[-1] < losses[0] / 2}")
