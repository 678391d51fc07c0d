"""Adam on a gradient list: its state on every rank, divided, and with local steps, in turns.

    mpirun -np 2 python benchmarks/bench_optimizer.py --sets resnet50           # times, in turns
    mpirun -np 2 python benchmarks/bench_optimizer.py --sets bert --kinds whole    # memory
    mpirun -np 2 python benchmarks/bench_optimizer.py --sets bert --kinds divided

`whole` averages gradients, `divided` has shard_state=True, `local` exchanges weights after each
fourth step (sync_every=4). A sample is four steps of a kind, and they take turns; a row has the
time of a step, and over that of the first kind: the median and quartiles of the samples' ratios.
Memory is the largest of all ranks, and only to be compared between processes of one kind each.

Gradients are computed from the weights, as temporaries; the weights must end equal on all ranks.
"""

import statistics
import time

import numpy as np
from common import Bench, argument_parser, comma_list, tf
from measure import LoadMeter, PeakMemory, summarize
from sets import SETS, elements

import smddp_tf.keras as hvd

KINDS = {"whole": {}, "divided": {"shard_state": True}, "local": {"sync_every": 4}}
STEPS = 4  # of a sample


def make_step(kind, shapes):
    """Return a function that takes a sample's steps, the weights, and the optimizer."""
    weights = [
        tf.keras.Variable(tf.fill(shape, 0.5 + 0.125 * (i % 4)), name=f"w{i}")
        for i, shape in enumerate(shapes)
    ]
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.001), **KINDS[kind])
    optimizer.build(weights)
    factor = tf.Variable(1.0 + hvd.rank())

    @tf.function
    def step():
        optimizer.apply([weight * factor for weight in weights], weights)

    def steps():
        for _ in range(STEPS):
            step()

    return steps, weights, optimizer


def seconds_of(steps):
    """Return how long a sample takes, from when all ranks have come to when all are done."""
    hvd.barrier()
    start = time.perf_counter()
    steps()
    hvd.barrier()
    return time.perf_counter() - start


def in_turns(runs, samples):
    """Return the seconds of a step by kind; the kinds take turns, after one sample of each."""
    found = {kind: [] for kind in runs}
    for turn in range(samples + 1):
        for kind, (steps, *_) in runs.items():
            sample = seconds_of(steps) / STEPS
            if turn:
                found[kind].append(sample)
    return found


def quartiles(ratios):
    """Return the median and the quartiles, rounded."""
    ordered = sorted(ratios)
    quarter = len(ordered) // 4
    chosen = (statistics.median(ordered), ordered[quarter], ordered[-1 - quarter])
    return [round(ratio, 3) for ratio in chosen]


def measure_set(bench, name, args):
    """Measure all kinds on one list, check and emit their rows."""
    shapes, memory = SETS[name](), PeakMemory()
    runs = {kind: make_step(kind, shapes) for kind in args.kinds}
    with LoadMeter() as load:
        times = in_turns(runs, bench.repeats(args.samples))
    peaks = bench.largest([memory.peak(), memory.peak() - memory.start])
    for kind, (_, weights, optimizer) in runs.items():
        hvd.check_ranks_equal(weights)
        slots = bench.largest([4.0 * sum(np.prod(v.shape) for v in optimizer.variables)])
        ratios = [b / a for a, b in zip(times[args.kinds[0]], times[kind], strict=True)]
        bench.emit(
            f"optimizer.{name}.{kind}",
            bench="optimizer",
            mode=kind,
            parameters=elements(shapes),
            **summarize(times[kind]),
            ratio=quartiles(ratios),
            slots_mb=round(slots[0] / 1e6),
            peak_mb=round(peaks[0] / 1e6),
            peak_extra_mb=round(peaks[1] / 1e6),
            **load.row,
        )


def main():
    """Measure every list."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--sets", type=comma_list(str, SETS), default=["resnet50"])
    parser.add_argument("--kinds", type=comma_list(str, KINDS), default=list(KINDS))
    parser.add_argument("--samples", type=int, default=12, help="of four steps each")
    args = parser.parse_args()
    bench = Bench(args)
    for name in args.sets:
        measure_set(bench, name, args)


if __name__ == "__main__":
    main()
