"""Hugging Face's Accelerate on the backend "smddp", on the CPU.

Values are small multiples of powers of two and the loss is linear in the weights, so every sum is
exact: the weights are those of one process, bit for bit.
"""

import tempfile

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object, reduce

import smddp_tf.torch  # noqa: F401 - registers the backend

SAMPLES, EPOCHS, PASSES = 64, 2, 2
RATE = 2.0**-4


def make_model():
    """A model with the same weights each time."""
    model = torch.nn.Linear(6, 4)
    for weights in model.parameters():
        values = torch.arange(weights.numel()).remainder(4) / 4
        weights.data.copy_(values.view(weights.shape))
    return model


def make_data(batch):
    """A loader that does not shuffle."""
    rows = torch.arange(SAMPLES * 6).remainder(5).view(SAMPLES, 6) - 2.0
    data = torch.utils.data.TensorDataset(rows, rows[:, :4].flip(0))
    return torch.utils.data.DataLoader(data, batch_size=batch)


def flat(model):
    """All weights, in one tensor."""
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


def one_process(batch):
    """The weights after the same training by plain PyTorch."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for number, (x, y) in enumerate(make_data(batch)):
            ((model(x) * y).mean() / PASSES).backward()
            if number % PASSES == PASSES - 1:
                optimizer.step()
                optimizer.zero_grad()
    return flat(model)


dist.init_process_group("smddp")
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=PASSES)
rank, ranks = accelerator.process_index, accelerator.num_processes
batch = 16 // ranks
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
model, optimizer, data = accelerator.prepare(model, optimizer, make_data(batch))
seen = []
for _ in range(EPOCHS):
    for x, y in data:
        with accelerator.accumulate(model):
            accelerator.backward((model(x) * y).mean())
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1e6)
            optimizer.step()
            optimizer.zero_grad()
        seen.append(accelerator.gather_for_metrics(x).sum().item())
weights = flat(accelerator.unwrap_model(model))
others = accelerator.gather(weights).view(ranks, -1)
wanted = [x.sum().item() for _ in range(EPOCHS) for x, _ in make_data(16)]

box = [tempfile.mkdtemp() if accelerator.is_main_process else None]
broadcast_object_list(box)
accelerator.save_state(box[0])
accelerator.wait_for_everyone()
with torch.no_grad():
    for one in model.parameters():
        one.zero_()
accelerator.load_state(box[0])
print(
    f"rank {rank} of {ranks} backend {dist.get_backend()}",
    f"equal {all(torch.equal(weights, one) for one in others)}",
    f"one process {torch.equal(weights, one_process(16))}",
    f"moved {not torch.equal(weights, flat(make_model()))}",
    f"samples {seen == wanted}",
    f"loaded {torch.equal(weights, flat(accelerator.unwrap_model(model)))}",
    f"objects {gather_object([rank]) == list(range(ranks))}",
    f"mean {reduce(torch.tensor([2.0 * rank]), 'mean').item() == ranks - 1}",
    flush=True,
)
accelerator.end_training()
