"""Compares the backend smddp with gloo: smddprun -np 2 python benchmarks/torch_peers.py.

    python benchmarks/torch_peers.py --hosts 1,1 --rate 1gbit

runs it between hosts that are made of namespaces, for which it needs the rights of root.

Both run in one job, each of every round in turn, so that a machine that others share treats both
alike. A ratio is taken within a round; the table has its median and its quartiles over the rounds.
"""

import argparse
import os
import pathlib
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import smddp_tf.torch  # noqa: F401 - registers the backend

SIZES = [1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
OTHER_SIZES = [1 << 10, 1 << 20, 16 << 20]  # of what is not all_reduce
BUDGET = 64 << 20  # bytes of a round, so that small sizes are repeated


def seconds(function, times):
    """The time of a call, of all ranks alike."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(times):
        function()
    return (time.perf_counter() - start) / times


def compare(name, functions, times, rounds):
    """Prints a line of the table. functions: of smddp and gloo."""
    for function in functions:
        seconds(function, max(1, times // 4))
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(seconds(functions[0], times))
        theirs.append(seconds(functions[1], times))
    ratios = [other / own for own, other in zip(ours, theirs, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    if dist.get_rank() == 0:
        own, other = (1e3 * statistics.median(one) for one in (ours, theirs))
        print(
            f"| {name} | {own:.3f} ms | {other:.3f} ms | {middle:.2f} ({low:.2f} to {high:.2f}) |",
            flush=True,
        )


def others(size, group):
    """The other collectives by name; `size`: the bytes of a rank's tensor.

    Lists are of tensors that lie apart, or of chunks of one tensor.
    """
    ranks, root = dist.get_world_size(), dist.get_rank() == 0
    whole, room = torch.zeros(size // 4), torch.empty(ranks * (size // 4))
    part = torch.empty(len(whole) // ranks)
    apart, apart_parts = ([torch.zeros_like(one) for _ in range(ranks)] for one in (whole, part))
    chunks, parts = list(room.chunk(ranks)), list(whole.chunk(ranks))
    return {
        "broadcast": lambda: dist.broadcast(whole, 0, group),
        "reduce": lambda: dist.reduce(whole, 0, group=group),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter(part, apart_parts, group=group),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(room, whole, group),
        "all_gather": lambda: dist.all_gather(apart, whole, group),
        "all_gather, chunks": lambda: dist.all_gather(chunks, whole, group),
        "gather": lambda: dist.gather(whole, apart if root else None, 0, group),
        "gather, chunks": lambda: dist.gather(whole, chunks if root else None, 0, group),
        "scatter": lambda: dist.scatter(part, apart_parts if root else None, 0, group),
        "scatter, chunks": lambda: dist.scatter(part, parts if root else None, 0, group),
        "all_to_all_single": lambda: dist.all_to_all_single(chunks[0], whole, group=group),
        "all_to_all, chunks": lambda: dist.all_to_all(list(chunks[0].chunk(ranks)), parts, group),
    }


def messages(size, group):
    """Messages between two ranks by name; `size`: of a message, in bytes."""
    own, room = torch.zeros(size // 4), torch.zeros(size // 4)
    first, peer = dist.get_rank() == 0, 1 - dist.get_rank()

    def there_and_back():
        if first:
            dist.send(own, peer, group)
        dist.recv(room, peer, group)
        if not first:
            dist.send(own, peer, group)

    def both_ways():
        pair = [dist.P2POp(dist.isend, own, peer, group), dist.P2POp(dist.irecv, room, peer, group)]
        for work in dist.batch_isend_irecv(pair):
            work.wait()

    return {"send there and back": there_and_back, "batch_isend_irecv": both_ways}


def perceptron():
    """1.9 million weights, a batch of 32."""
    layers = [torch.nn.Linear(784, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024)]
    return torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(1024, 10)), (32, 784)


def convolutions():
    """2.4 million weights in convolutions, a batch of 8."""
    layers, channels = [], 3
    for wider in (32, 64, 128, 256, 256):
        layers += [torch.nn.Conv2d(channels, wider, 3, 2, 1), torch.nn.BatchNorm2d(wider)]
        layers += [torch.nn.ReLU(), torch.nn.Conv2d(wider, wider, 3, 1, 1), torch.nn.ReLU()]
        channels = wider
    layers += [torch.nn.Flatten(), torch.nn.Linear(256, 10)]
    return torch.nn.Sequential(*layers), (8, 3, 32, 32)


def steps(make, group):
    """A function that makes one training step."""
    torch.manual_seed(0)
    model, shape = make()
    inputs = torch.randn(shape)
    model = DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)

    def step():
        model.zero_grad()
        model(inputs).square().mean().backward()

    return step


def between_hosts(options):
    """Runs this program on hosts."""
    root = pathlib.Path(__file__).resolve().parents[1]
    sys.path.insert(0, str(root / "tests" / "hosts"))
    from namespaces import Hosts

    ranks = [int(count) for count in options.hosts.split(",")]
    words = [sys.executable, __file__, "--rounds", str(options.rounds), "--only", options.only]
    env = {"GLOO_SOCKET_IFNAME": "eth0", "PYTHONPATH": str(root)}
    with Hosts(len(ranks), rate=options.rate) as hosts:
        print(hosts.smddprun(ranks, words, timeout=1800, env=env, options=["--no-tag-output"]))


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="lines whose name contains this")
    parser.add_argument("--hosts", default="", help="ranks of each host, as 1,1 or 2,2")
    parser.add_argument("--rate", default="1gbit", help="of the hosts' links, as tc writes it")
    options = parser.parse_args()
    if options.hosts:
        return between_hosts(options)
    dist.init_process_group("smddp")
    torch.set_num_threads(1)
    groups = [dist.group.WORLD, dist.new_group(backend="gloo")]
    if dist.get_rank() == 0:
        load = os.getloadavg()[0]
        ranks, cores = dist.get_world_size(), os.cpu_count()
        print(f"PyTorch {torch.__version__}, {ranks} ranks, {cores} cores, load {load:.1f}\n")
        print("| what | smddp | gloo | gloo's time over smddp's (quartiles) |\n|---|---|---|---|")

    def line(name, functions, times):
        if options.only in name:
            compare(name, functions, times, options.rounds)

    for size in SIZES:
        tensor = torch.zeros(size // 4)
        functions = [lambda g=group, t=tensor: dist.all_reduce(t, group=g) for group in groups]
        line(f"all_reduce of {size >> 10} KiB", functions, max(2, min(300, BUDGET // size)))
    for size in OTHER_SIZES:
        ours, theirs = (others(size, group) for group in groups)
        if dist.get_world_size() == 2:
            for calls, group in zip((ours, theirs), groups, strict=True):
                calls |= messages(size, group)
        for name, own in ours.items():
            times = max(2, min(100, BUDGET // size))
            line(f"{name}, {size >> 10} KiB", (own, theirs[name]), times)
    for make in (perceptron, convolutions):
        functions = [steps(make, group) for group in groups]
        weights = sum(one.numel() for one in make()[0].parameters())
        line(f"DDP step, {make.__name__}, {weights / 1e6:.1f} million weights", functions, 6)
    return dist.destroy_process_group()


if __name__ == "__main__":
    main()
