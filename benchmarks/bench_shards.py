"""Adam on a gradient list, with its state on every rank (whole) and divided (shard_state=True).

    mpirun -np 2 python benchmarks/bench_shards.py --set bert --kinds whole      # memory
    mpirun -np 2 python benchmarks/bench_shards.py --set bert --kinds divided
    mpirun -np 2 python benchmarks/bench_shards.py --set resnet50 --kinds whole,divided  # time

A row has the peak and the last resident memory of a rank, over all ranks the largest, and what its
slots take. Memory is to be compared between processes of one kind each. With both kinds, steps
alternate: the ratio is the median of those of pairs of steps.

Gradients are computed from the weights, as temporaries; the weights must end equal on all ranks.
"""

import argparse
import statistics
import time

import numpy as np
import tensorflow as tf
from measure import PeakMemory
from sets import SETS, elements

import smddp_tf.keras as hvd


def make_step(kind, shapes):
    """Return a function that takes a step, the weights, and the optimizer."""
    weights = [
        tf.keras.Variable(tf.fill(shape, 0.5 + 0.125 * (i % 4)), name=f"w{i}")
        for i, shape in enumerate(shapes)
    ]
    optimizer = hvd.DistributedOptimizer(
        tf.keras.optimizers.Adam(0.001), shard_state=kind == "divided"
    )
    optimizer.build(weights)
    factor = tf.Variable(1.0 + hvd.rank())

    @tf.function
    def step():
        optimizer.apply([weight * factor for weight in weights], weights)

    return step, weights, optimizer


def seconds_of(step):
    """Return how long a step takes, from when all ranks have come."""
    hvd.barrier()
    start = time.perf_counter()
    step()
    hvd.barrier()
    return time.perf_counter() - start


def main():
    """Measure, check and print, on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", choices=list(SETS), default="bert")
    parser.add_argument("--kinds", default="whole,divided", help="whole, divided or both")
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    hvd.init()
    shapes, memory = SETS[args.set](), PeakMemory()
    runs = {kind: make_step(kind, shapes) for kind in args.kinds.split(",")}
    for step, *_ in runs.values():
        step()
    times = {kind: [] for kind in runs}
    for _ in range(args.steps):
        for kind, (step, *_) in runs.items():
            times[kind].append(seconds_of(step))

    own = {"peak": memory.peak() / 1e6, "above start": (memory.peak() - memory.start) / 1e6}
    for kind, (_, weights, optimizer) in runs.items():
        own[f"slots, {kind}"] = 4e-6 * sum(np.prod(v.shape) for v in optimizer.variables)
        hvd.check_ranks_equal(weights)
    largest = hvd.allreduce(tf.constant(list(own.values())), op=hvd.Max)
    if hvd.rank() == 0:
        words = [f"{key} {value:.0f} MB" for key, value in zip(own, largest.numpy(), strict=True)]
        words += [f"{kind} {1e3 * statistics.median(all_):.1f} ms" for kind, all_ in times.items()]
        if len(times) == 2:
            ratios = sorted(b / a for a, b in zip(*times.values(), strict=True))
            quarter = len(ratios) // 4
            low, high = ratios[quarter], ratios[-1 - quarter]
            words.append(f"ratio {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})")
        million = elements(shapes) / 1e6
        print(f"{args.set}, {million:.1f} M, {hvd.size()} ranks: " + ", ".join(words), flush=True)


if __name__ == "__main__":
    main()
