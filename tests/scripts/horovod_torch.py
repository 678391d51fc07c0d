"""As Horovod's guide for PyTorch shows it: unscaled loss, clipping, state of rank 0, an average."""

import argparse

import horovod.torch as hvd
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.utils.data.distributed

parser = argparse.ArgumentParser()
parser.add_argument("--fp16-allreduce", action="store_true")
args = parser.parse_args()

hvd.init()
torch.manual_seed(42 + hvd.rank())
torch.set_num_threads(1)

generator = torch.Generator().manual_seed(1)
inputs = torch.randn(256, 8, generator=generator)
dataset = torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long())
sampler = torch.utils.data.distributed.DistributedSampler(
    dataset, num_replicas=hvd.size(), rank=hvd.rank()
)
loader = torch.utils.data.DataLoader(dataset, batch_size=16, sampler=sampler)

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * hvd.size(), momentum=0.5)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
optimizer = hvd.DistributedOptimizer(
    optimizer,
    named_parameters=model.named_parameters(),
    compression=compression,
    op=hvd.Average,
    gradient_predivide_factor=1.0,
)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, gamma=0.5)


def metric_average(val, name):
    tensor = torch.tensor(val)
    avg_tensor = hvd.allreduce(tensor, name=name)
    return avg_tensor.item()


def train(epoch):
    model.train()
    sampler.set_epoch(epoch)
    for data, target in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        with optimizer.skip_synchronize():
            optimizer.step()
    scheduler.step()
    return loss.item()


losses = [metric_average(train(epoch), "avg_loss") for epoch in range(6)]
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
others = hvd.allgather(weights.unsqueeze(0), name="weights")
equal = bool((others == others[0]).all()) and len(others) == hvd.size()
print(f"rank {hvd.rank()} equal {equal} better {losses[-1] < losses[0] / 2}", flush=True)
