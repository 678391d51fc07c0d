"""As Horovod's elastic examples for PyTorch show it; slot 1 is killed.

smddprun --alias -np 2 --min-np 2 --host-discovery-script H python horovod_torch_elastic.py
"""

import os
import signal

import horovod.torch as hvd
import torch
import torch.nn as nn
import torch.nn.functional as F
from horovod.torch.elastic.sampler import ElasticSampler

hvd.init()
torch.manual_seed(42 + hvd.rank())
torch.set_num_threads(1)
slot, sizes, used = os.environ["SMDDP_RENDEZVOUS_SLOT"], [], []
epochs, batch_size, rate = 3, 4, 0.01

generator = torch.Generator().manual_seed(1)
inputs = torch.randn(72, 8, generator=generator)
dataset = torch.utils.data.TensorDataset(torch.arange(72), inputs, (inputs.sum(1) > 0).long())
train_sampler = ElasticSampler(dataset)
loader = torch.utils.data.DataLoader(dataset, batch_size=batch_size, sampler=train_sampler)

model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=rate * hvd.size(), momentum=0.5)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def on_state_reset():
    for param_group in optimizer.param_groups:
        param_group["lr"] = rate * hvd.size()


def train_epoch(state):
    for batch_idx, (numbers, data, target) in enumerate(loader):
        if (slot, state.epoch, batch_idx) == ("1", 1, 4):
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        F.cross_entropy(model(data), target).backward()
        optimizer.step()
        used.append((state.epoch, numbers.tolist()))
        state.train_sampler.record_batch(batch_idx, batch_size)
        if batch_idx % 2 == 1:
            state.kept = list(used)
            state.commit()


@hvd.elastic.run
def train(state):
    used[:] = state.kept
    sizes.append(hvd.size())
    while state.epoch < epochs:
        train_epoch(state)
        state.epoch += 1
        state.kept = list(used)
        state.train_sampler.set_epoch(state.epoch)
        state.commit()


state = hvd.elastic.TorchState(
    model=model, optimizer=optimizer, train_sampler=train_sampler, epoch=0, batch=0, kept=[]
)
state.register_reset_callbacks([on_state_reset])
train(state)

weights = torch.cat([one.detach().flatten() for one in model.parameters()])
others = hvd.allgather(weights.unsqueeze(0), name="weights")
equal = bool((others == others[0]).all()) and len(others) == hvd.size()
parts = [part for one in hvd.allgather_object(used) for part in one]
last = sorted(number for epoch, numbers in parts if epoch == 2 for number in numbers)
print(
    f"slot {slot} sizes {sizes} epoch {state.epoch} rate {optimizer.param_groups[0]['lr']:g} "
    f"equal {equal} last {last}",
    flush=True,
)
