"""Trains on handwritten digits with PyTorch: smddprun -np 2 python examples/torch_digits.py.

The data ship with scikit-learn. Lines that distribution added are marked `# distributed`.
"""

import argparse
import time

import numpy as np
import torch
import torch.distributed as dist  # distributed
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel  # distributed

import smddp_tf.torch  # distributed: registers the backend "smddp"


def load():
    """Returns (x, y, x_test, y_test): rows of floats in [0, 1] and integer labels."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x = torch.tensor(digits.data[order] / 16.0, dtype=torch.float32)
    y = torch.tensor(digits.target[order])
    return x[:1440], y[:1440], x[1440:], y[1440:]


def parse_arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=96, help="of all ranks together")
    parser.add_argument("--rate", type=float, default=0.1, help="learning rate")
    return parser.parse_args()


def ranks_are_equal(model):
    """Whether all ranks hold the same weights."""
    weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    everyone = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, weights)
    return all(torch.equal(one, weights) for one in everyone)


def main():
    """Trains, and checks that all ranks end with the same weights."""
    args = parse_arguments()
    dist.init_process_group("smddp")  # distributed
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    if args.batch % ranks:
        raise SystemExit(f"--batch {args.batch} is not a multiple of the {ranks} ranks")
    x, y, x_test, y_test = load()
    torch.manual_seed(rank)  # distributed: the model takes the weights of rank 0
    layers = torch.nn.Linear(x.shape[1], 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    model = DistributedDataParallel(torch.nn.Sequential(*layers))  # distributed
    optimizer = torch.optim.SGD(model.parameters(), lr=args.rate, momentum=0.9)
    steps, start = len(x) // args.batch, time.perf_counter()
    for epoch in range(args.epochs):
        order = np.random.default_rng(epoch).permutation(len(x))[: steps * args.batch]
        total = torch.zeros(())
        for batch in order.reshape(steps, args.batch):
            mine = batch[rank::ranks]  # distributed: this rank's part
            loss = torch.nn.functional.cross_entropy(model(x[mine]), y[mine])
            optimizer.zero_grad()
            loss.backward()  # distributed: averages gradients over the ranks
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total, dist.ReduceOp.AVG)  # distributed
        if rank == 0:
            accuracy = (model(x_test).argmax(1) == y_test).float().mean()
            print(f"epoch {epoch + 1} loss={total / steps:.4f}; accuracy={accuracy:.4f};")
    seconds = time.perf_counter() - start
    if not ranks_are_equal(model):
        raise SystemExit(f"rank {rank}: the ranks' weights differ")
    if rank == 0:
        rate = args.epochs * steps * args.batch / seconds
        print(f"all {ranks} ranks hold the same weights; {rate:.0f} samples/s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
