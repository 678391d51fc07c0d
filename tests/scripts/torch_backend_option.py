"""A script that takes the backend's name as an option, and imports nothing of ours."""

import argparse
import os

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--dist-backend", default="nccl")
args = parser.parse_args()

ranks = [os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]
if ranks[0] is None:
    print("no RANK")
else:
    dist.init_process_group(args.dist_backend, init_method="env://")
    total = torch.tensor([1.0 + dist.get_rank()])
    dist.all_reduce(total)
    print("rank {} of {}, {} here {} {}".format(*ranks, dist.get_backend(), total.item()))
    dist.destroy_process_group()
