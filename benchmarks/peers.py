"""Compare with Horovod on the same TensorFlow, with MPI's own allreduce, and with the memory.

Every round runs every contestant once, in turn, so that a machine that others share treats all
alike; a ratio is taken within a round, and the table has the median over rounds. Horovod runs with
its default cycle and with HOROVOD_CYCLE_TIME=0.1; the better of the two counts, case by case.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from environments import make_intel_mpi, make_mpich, make_peers
from goals import (
    DEFAULT_CYCLE,
    GOALS,
    INTEL_MPI,
    MEMORY,
    MPICH,
    OPEN_MPI,
    OURS,
    RAW,
    SHORT_CYCLE,
    STRATEGY,
    Figures,
    evaluate,
    table_lines,
)
from launch import (
    HERE,
    RESULTS,
    ROOT,
    LaunchError,
    Mpi,
    build_core,
    build_memory_limit,
    build_mpi,
    machine,
    run_rows,
)
from measure import distances_in
from plot import plot

PARTS = ("raw", "allreduce", "grads", "train", "fit")
RAW_SIZES = "65536,1048576,16777216,102228128,134217728,437928960"
DISTURBED = 0.2  # cores used by others, above which a figure deserves no trust


@dataclass(frozen=True)
class Contestant:
    """Something to run in each round of a part."""

    name: str
    mpi: Mpi
    ranks: int  # under mpirun; 0: without
    command: list
    environment: dict


def parse():
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--np", type=int, default=2, help="number of ranks")
    parser.add_argument("--rounds", type=int, default=0, help="default 5, or 2 with --quick")
    parser.add_argument("--quick", action="store_true", help="few repeats, no 438 MB")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    parser.add_argument(
        "--peers-venv", type=Path, default=ROOT / ".venv-peers", help="made unless it is there"
    )
    parser.add_argument(
        "--mpich-venv", type=Path, default=ROOT / ".venv-mpich", help="made unless it is there"
    )
    parser.add_argument(
        "--impi-venv", type=Path, default=ROOT / ".venv-impi", help="made unless it is there"
    )
    parser.add_argument("--mpirun-args", default="", help="for Open MPI, such as '--bind-to none'")
    parser.add_argument("--name", default="peers", help="of the files in benchmarks/results")
    parser.add_argument("--timeout", type=int, default=900, help="seconds for each launch")
    return parser.parse_args()


def raw_contestants(args, open_mpi):
    """Return our core, the MPIs and the memory."""
    mpis = {OPEN_MPI: open_mpi, MPICH: make_mpich(args.mpich_venv)}
    if intel_mpi := make_intel_mpi(args.impi_venv):
        mpis[INTEL_MPI] = intel_mpi
    sizes = RAW_SIZES.rpartition(",")[0] if args.quick else RAW_SIZES
    options = ["--scale", "0.3" if args.quick else "1", "--sizes", sizes]
    limit_sizes = ",".join(size for size in sizes.split(",") if int(size) > 1 << 24)
    limit = [build_memory_limit(), "--threads", str(args.np), "--sizes", limit_sizes]
    return [
        Contestant(RAW, open_mpi, args.np, [build_core(), *options], {}),
        *(
            Contestant(name, mpi, args.np, [build_mpi(mpi), *options], {})
            for name, mpi in mpis.items()
        ),
        Contestant(MEMORY, open_mpi, 0, limit, {}),
    ]


def tensorflow_contestants(part, args, open_mpi):
    """Return both libraries, Horovod with two settings, and for training steps no library."""
    options = ["--scale", "0.2" if args.quick else "1"]
    if part == "grads":
        # The other paths tell how a library works inside; only its tape is compared.
        options += ["--paths", "tape", *(["--sets", "resnet50,small500"] if args.quick else [])]

    def contestant(name, library, **environment):
        script = [open_mpi.bin / "python", HERE / f"bench_{part}.py", "--lib", library, *options]
        return Contestant(name, open_mpi, args.np, script, environment)

    keras = ".keras" if part == "fit" else ""
    return [
        contestant(OURS, "smddp_tf" + keras, PYTHONPATH=str(ROOT)),
        contestant(DEFAULT_CYCLE, "horovod.tensorflow" + keras),
        contestant(SHORT_CYCLE, "horovod.tensorflow" + keras, HOROVOD_CYCLE_TIME="0.1"),
        *([contestant("no reduction", "none")] if part in ("train", "fit") else []),
        *([contestant(STRATEGY, "mwms")] if part == "fit" else []),
    ]


def run_part(part, contestants, args, failures):
    """Run all rounds of one part, each round starting with another contestant."""
    rows = []
    for number in range(args.rounds):
        turn = number % len(contestants)
        for who in [*contestants[turn:], *contestants[:turn]]:
            print(f"-- {part}, round {number + 1} of {args.rounds}: {who.name}", flush=True)
            try:
                measured = run_rows(
                    who.mpi, who.ranks, who.command, args.timeout, **who.environment
                )
            except LaunchError as error:
                failures.append(f"{part}, round {number + 1}, {who.name}: {error}")
                print(failures[-1], file=sys.stderr, flush=True)
                continue
            rows += [{**row, "contestant": who.name, "round": number} for row in measured]
    return rows


def print_report(lines, failures):
    """Print the table, what was missed, and what makes it doubtful."""
    print("\n".join(table_lines(lines)))
    goals = [line for line in lines if line["met"] is not None]
    print(f"\n{sum(line['met'] for line in goals)} of {len(goals)} goals met")
    disturbed = [line["label"] for line in lines if line["others_cores"] > DISTURBED]
    if disturbed:
        print(f"others used more than {DISTURBED} cores during: {'; '.join(disturbed)}")
    for failure in failures:
        print(f"FAILED: {failure.splitlines()[0]}", file=sys.stderr)


def main():
    """Prepare, measure, write, print; exit 1 where a run failed."""
    args = parse()
    args.rounds = args.rounds or (2 if args.quick else 5)
    RESULTS.mkdir(exist_ok=True)
    open_mpi = Mpi(make_peers(args.peers_venv) / "bin", args.mpirun_args.split())
    rows, failures = [], []
    for part in args.only:
        if part == "raw":
            contestants = raw_contestants(args, open_mpi)
        else:
            contestants = tensorflow_contestants(part, args, open_mpi)
        rows += run_part(part, contestants, args, failures)
    lines = []
    for figures in [Figures(rows, distance) for distance in distances_in(rows)]:
        lines += [line for line in (evaluate(goal, figures) for goal in GOALS) if line]
    result = {"machine": machine(), "np": args.np, "rounds": args.rounds, "table": lines}
    output = RESULTS / f"{args.name}.json"
    output.write_text(json.dumps({**result, "rows": rows, "failures": failures}, indent=1))
    print_report(lines, failures)
    picture = output.with_suffix(".png")
    print(plot(rows, picture) or f"plot: {picture}")
    print(f"rows: {output}")
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LaunchError as error:
        sys.exit(f"error: {error}")
