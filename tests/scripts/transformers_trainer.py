"""Hugging Face's Trainer on the CPU: on ranks, or --alone with all their batches.

Prints the loss of an evaluation, and how far the weights have moved.
"""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

BATCH = 8

if "--alone" not in sys.argv:
    import smddp_tf.torch  # noqa: F401 - registers the backend, and sets WORLD_SIZE

    dist.init_process_group("smddp")


class Sentences(torch.utils.data.Dataset):
    """Twelve words each."""

    def __len__(self):
        return 32

    def __getitem__(self, index):
        words = torch.randint(0, 50, (12,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words}


def flat(model):
    """All weights, in one tensor."""
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=50,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
)
model = LlamaForCausalLM(config)
ranks = int(os.environ.get("WORLD_SIZE", "1"))
args = TrainingArguments(
    tempfile.mkdtemp(),
    use_cpu=True,
    num_train_epochs=3,
    per_device_train_batch_size=BATCH // ranks,
    per_device_eval_batch_size=BATCH // ranks,
    learning_rate=0.1,
    optim="sgd",
    eval_strategy="epoch",
    report_to=[],
    disable_tqdm=True,
)
before = flat(model).clone()
trainer = Trainer(model, args, train_dataset=Sentences(), eval_dataset=Sentences())
result = trainer.train()
weights = flat(model)
text = (
    f"rank {args.process_index} of {args.world_size} steps {result.global_step} "
    f"evaluated {trainer.evaluate()['eval_loss']:.4f} moved {(weights - before).norm():.4f}"
)
if ranks > 1:
    others = [torch.empty_like(weights) for _ in range(ranks)]
    dist.all_gather(others, weights)
    equal = all(torch.equal(weights, one) for one in others)
    text += f" backend {dist.get_backend()} equal {equal}"
    dist.destroy_process_group()
print(text, flush=True)
