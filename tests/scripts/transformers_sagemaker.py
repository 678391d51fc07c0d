"""Transformers' arguments in a SageMaker job whose library for data parallelism is on.

Its Trainer wraps models for the GPU whose number SMDATAPARALLEL_LOCAL_RANK is.
"""

import os
import tempfile

import torch.distributed as dist
from transformers import TrainingArguments

args = TrainingArguments(tempfile.mkdtemp(), report_to=[])
print(
    f"rank {args.process_index} of {args.world_size} by {args.parallel_mode.name} on",
    f"{dist.get_backend()} local {os.environ['SMDATAPARALLEL_LOCAL_RANK']}",
    flush=True,
)
dist.destroy_process_group()
