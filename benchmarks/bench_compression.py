"""A network's gradients through the tape, with each compression in turn, on a slow network.

    python benchmarks/bench_compression.py --rates 1gbit 10gbit

Started like this it launches itself under mpirun once for each rate, every rank a node of its own,
in a network namespace whose loopback device carries no more than the rate (tc's token bucket; both
directions share it) and over TCP alone. It needs unshare, ip and tc, and Open MPI. A row has the
median step, and the ratio to the step without compression, taken round by round.
"""

import contextlib
import sys
from pathlib import Path

from launch import Mpi, run_rows
from measure import format_seconds, median

COMPRESSIONS = ("none", "fp16", "bf16", "int8", "topk")
# With the TensorFlow ops of jit and of GPUs without kernels, instead of smddp_tf's own.
BY_TENSORFLOW = ("int8-by-tensorflow", "topk-by-tensorflow")
OVER_TCP = ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"]
SLOW_NETWORK = (
    'ip link set lo up && tc qdisc add dev lo root tbf rate $0 burst 1m latency 100ms && exec "$@"'
)
# Of the largest magnitude of a gradient: more than this is a wrong result, and not rounding.
TOLERANCE = {"none": 0.0, "fp16": 0.0, "bf16": 0.0, "int8": 1 / 254 + 1e-6}


class SlowMpi(Mpi):
    """An MPI whose launches have a network of their own."""

    def command(self, ranks, program):
        """Return the command line; the first of `extra` is the rate."""
        rate, *options = self.extra
        inner = Mpi(self.bin, options).command(ranks, program)
        return ["unshare", "-rn", "sh", "-c", SLOW_NETWORK, rate, *inner]


def step_of(bench, name, variables):
    """Return the tf.function that is timed, and one for the largest error of a gradient."""
    from bench_grads import through_tape  # noqa: PLC0415 (TensorFlow: in the ranks alone)
    from common import tf  # noqa: PLC0415

    kind = name.partition("-")[0]
    compression = getattr(bench.lib.Compression, kind)
    compression = compression(0.01) if kind == "topk" else compression
    one = tf.Variable(1.0)

    def gradients():
        reads = [variable.read_value() * one for variable in variables]
        return through_tape(
            reads,
            variables,
            lambda tape: bench.lib.DistributedGradientTape(tape, compression=compression),
        )

    @tf.function
    def step():
        return bench.consume(gradients())

    @tf.function
    def error():
        average = (bench.size + 1) / 2 / (bench.rank + 1)
        errors = [
            tf.reduce_max(tf.abs(result - average * variable))
            for result, variable in zip(gradients(), variables, strict=True)
        ]
        return tf.reduce_max(errors) / 63

    return step, error


@contextlib.contextmanager
def ops_of(name):
    """Traces with TensorFlow's ops if the name says so."""
    from smddp_tf._src.graph.ops import int8, topk  # noqa: PLC0415 (TensorFlow: in the ranks alone)

    kept = {}
    if name in BY_TENSORFLOW:
        for module, op in ((int8, "quantize"), (int8, "sum"), (topk, "select"), (topk, "sum")):
            kept[module, op] = getattr(module, f"_emit_{op}")
            setattr(module, f"_emit_{op}", getattr(module, f"_{op}"))
    yield
    for (module, op), emit in kept.items():
        setattr(module, f"_emit_{op}", emit)


def measure(args):
    """One rank's part: every compression in turn, round after round."""
    from common import Bench, tf  # noqa: PLC0415
    from sets import SETS, elements  # noqa: PLC0415

    bench = Bench(args)
    variables = [tf.Variable(bench.pattern(shape)) for shape in SETS[args.set]()]
    steps = {}
    names = [*COMPRESSIONS, *BY_TENSORFLOW] if args.by_tensorflow else COMPRESSIONS
    for name in names:
        steps[name], error = step_of(bench, name, variables)
        with ops_of(name):
            largest = float(error().numpy())
            steps[name]()
        tolerance = TOLERANCE.get(name.partition("-")[0])
        if tolerance is not None and largest > tolerance * bench.size:
            bench.fail(f"{name}: an error of {largest} of the largest gradient")
    rounds = []
    for _ in range(args.rounds):
        rounds.append({n: bench.time(lambda s=s: s().numpy(), 3) for n, s in steps.items()})
    for name in names:
        ratios = sorted(row["none"]["med"] / row[name]["med"] for row in rounds)
        bench.emit(
            f"compression.{args.set}.{name}",
            bytes=4 * elements([variable.shape for variable in variables]),
            med=median([row[name]["med"] for row in rounds]),
            ratio=median(ratios),
            ratio_min=ratios[0],
            ratio_max=ratios[-1],
            others_cores=max(row[name].get("others_cores", 0) for row in rounds),
        )


def launch(args):
    """Run the ranks once for each rate and print the table."""
    found = Mpi.find(args.mpirun)
    print("| rate | compression | step | times faster (min-max) | others' cores |\n|" + 5 * "---|")
    for rate in args.rates:
        mpi = SlowMpi(found.bin, [rate, *OVER_TCP])
        program = [sys.executable, Path(__file__), "--set", args.set, "--rounds", args.rounds]
        program += ["--by-tensorflow"] if args.by_tensorflow else []
        rows = run_rows(
            mpi, args.np, program, SMDDP_NODES=str(args.np), SMDDP_SPIN_MICROSECONDS="0"
        )
        for row in rows:
            print(
                f"| {rate} | {row['case'].rpartition('.')[2]} | {format_seconds(row['med'])} | "
                f"{row['ratio']:.2f}x ({row['ratio_min']:.2f}-{row['ratio_max']:.2f}) | "
                f"{row['others_cores']} |",
                flush=True,
            )


def parse():
    """Return the options."""
    import argparse  # noqa: PLC0415

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rates", nargs="+", default=["1gbit", "10gbit"], help="as tc writes them")
    parser.add_argument("--set", default="resnet50", help="of benchmarks/sets.py")
    parser.add_argument("--np", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--by-tensorflow", action="store_true", help="int8 and topk by TensorFlow's ops as well"
    )
    parser.add_argument("--mpirun", default="", help="default: beside this Python, then on PATH")
    parser.set_defaults(lib="smddp_tf", scale=1.0, tag="")
    parser.add_argument("--json", default="", help="append rows to this file")
    return parser.parse_args()


if __name__ == "__main__":
    import os

    launched = any(n in os.environ for n in ("OMPI_COMM_WORLD_RANK", "PMI_RANK"))
    measure(parse()) if launched else launch(parse())
