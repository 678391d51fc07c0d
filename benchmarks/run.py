"""Our own suite: the raw core, allreduce, gradient lists, training steps, optimizers, the memory.

Writes results/NAME.json and results/NAME.png and prints a table. `--np 2 4` measures both and adds
the slowdown of the crowded ranks.
"""

import argparse
import json
import sys

from goals import MEMORY, OURS, RAW
from launch import (
    HERE,
    RESULTS,
    LaunchError,
    Mpi,
    build_core,
    build_memory_limit,
    machine,
    run_rows,
)
from measure import format_seconds
from plot import plot

PARTS = ("memory", "core", "allreduce", "grads", "train", "optimizer")


def parse():
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--np", type=int, nargs="+", default=[2], help="numbers of ranks")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    parser.add_argument("--lib", default="smddp_tf", help="of the TensorFlow parts")
    parser.add_argument("--quick", action="store_true", help="few repeats, no 438 MB: a smoke test")
    parser.add_argument("--mpirun", default="", help="default: beside this Python, then on PATH")
    parser.add_argument("--name", default="run", help="of the files in benchmarks/results")
    parser.add_argument("--timeout", type=int, default=900, help="seconds for each launch")
    return parser.parse_args()


def programs(part, ranks, args):
    """Return (contestant, ranks under mpirun or 0, command) of one part."""
    scale = ["--scale", "0.1" if args.quick else "1"]
    small = ["--sizes", "1024,65536,1048576,16777216,102228128"] if args.quick else []
    if part == "memory":
        size = ["--sizes", "102228128"] if args.quick else []
        return MEMORY, 0, [build_memory_limit(), "--threads", str(ranks), *scale, *size]
    if part == "core":
        return RAW, ranks, [build_core(), *scale, *small]
    script = [sys.executable, HERE / f"bench_{part}.py", "--lib", args.lib, *scale]
    if part == "grads" and args.quick:
        script += ["--sets", "resnet50,small500"]
    return OURS if args.lib == "smddp_tf" else args.lib, ranks, script


def print_table(rows, counts):
    """Print one line a case, one column a number of ranks."""
    cases = list(dict.fromkeys((row["contestant"], row["case"]) for row in rows))
    by_key = {(row["contestant"], row["case"], row["np"]): row for row in rows}
    head = [f"np={ranks}" for ranks in counts]
    slower = [f"np={ranks} / np={counts[0]}" for ranks in counts[1:]]
    columns = ["case", *head, *slower, "algBw GB/s", "others' cores"]
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for contestant, case in cases:
        found = [by_key.get((contestant, case, ranks)) for ranks in counts]
        cells = [f"{contestant} {case}"]
        cells += [format_seconds(row["med"]) if row else "-" for row in found]
        for row in found[1:]:
            cells.append(f"{row['med'] / found[0]['med']:.2f}x" if row and found[0] else "-")
        first = next(row for row in found if row)
        cells.append(str(first.get("algbw_gbs", "-")))
        cells.append(str(max(row["others_cores"] for row in found if row)))
        print("| " + " | ".join(cells) + " |")


def main():
    """Measure, write, print; exit 1 where a part failed."""
    args = parse()
    mpi = Mpi.find(args.mpirun)
    RESULTS.mkdir(exist_ok=True)
    rows, failures = [], []
    for ranks in args.np:
        for part in args.only:
            print(f"-- {part}, {ranks} ranks", flush=True)
            try:
                contestant, launched, command = programs(part, ranks, args)
                measured = run_rows(mpi, launched, command, args.timeout)
            except LaunchError as error:
                failures.append(f"{part}, {ranks} ranks: {error}")
                print(failures[-1], file=sys.stderr, flush=True)
                continue
            rows += [{**row, "contestant": contestant, "np": ranks, "round": 0} for row in measured]
    output = RESULTS / f"{args.name}.json"
    output.write_text(
        json.dumps({"machine": machine(), "rows": rows, "failures": failures}, indent=1)
    )
    print_table(rows, args.np)
    picture = output.with_suffix(".png")
    print(plot(rows, picture) or f"plot: {picture}")
    print(f"rows: {output}")
    for failure in failures:
        print(f"FAILED: {failure.splitlines()[0]}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LaunchError as error:
        sys.exit(f"error: {error}")
