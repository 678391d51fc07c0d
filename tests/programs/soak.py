"""Runs random programs under mpirun and tells which went wrong.

    soak.py --programs 1000                   on 2, 3 and 4 ranks and 1 and 2 nodes in turn
    soak.py --seeds 17 --ranks 3              one of them again; it is printed first
    soak.py --kinds loops jit --programs 50   some kinds only

Programs of one job run one after another, so one that ends its job costs one start.
"""

import argparse
import collections
import json
import pathlib
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "multirank")]

import launcher  # noqa: E402
from generate import KINDS, generate  # noqa: E402

PER_JOB = 25
# A lost rank must show as an error before the program's own limit, and small buckets make several.
ENVIRONMENT = {
    "SMDDP_TIMEOUT_SECONDS": "20",
    "SMDDP_FIRST_BUCKET_BYTES": "40",
    "SMDDP_BUCKET_BYTES": "100",
}
START_SECONDS, SECONDS_EACH = 60, 15


def ranks_of(seed: int) -> int:
    """2, 3 and 4 ranks take turns, over all kinds."""
    return 2 + seed // len(KINDS) % 3


def nodes_of(seed: int) -> int:
    """After each kind ran on 2, 3 and 4 ranks, the other number takes its turn."""
    return 1 + seed // (3 * len(KINDS)) % 2


def _events(folder) -> dict:
    """Seed -> rank -> its events."""
    found: dict = collections.defaultdict(lambda: collections.defaultdict(dict))
    for path in folder.glob("progress*"):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            found[event["seed"]][int(path.name[8:])][event.pop("event")] = event
    return found


def _verdict(by_rank: dict, ranks: int, job) -> dict:
    """Rank -> what went wrong there; {} if nothing did."""
    problems = {}
    for rank in range(ranks):
        events = by_rank.get(rank, {})
        for kind in ("wrong", "error"):
            if kind in events:
                problems[rank] = {kind: events[kind]}
        if not set(events) & {"right", "wrong", "error"}:
            where = job.where.get(rank) or "the job ended first"
            problems[rank] = {"unfinished": {"text": where}}
    return problems


def _job(programs, ranks: int, folder, options) -> launcher.Job:
    """One mpirun for several programs."""
    for path in folder.iterdir():
        path.unlink()
    for program in programs:
        (folder / f"program{program.seed}.py").write_text(program.source)
    listed = [{"seed": one.seed, "counts": one.counts} for one in programs]
    (folder / "programs.json").write_text(json.dumps(listed))
    limit = START_SECONDS + SECONDS_EACH * len(programs)
    env = {**ENVIRONMENT, **options.get("env", {})}
    python = launcher.warm_python(options.get("python"), env)
    command = [*launcher.mpirun(ranks), *python, HERE / "rank.py"]
    code, output, timed_out = launcher.run_command([*command, folder], timeout=limit, env=env)
    where = {int(path.name[6:]): path.read_text() for path in folder.glob("stacks*")}
    return launcher.Job(code, output, {}, timed_out, where)


def run_on(seeds, ranks: int, **options):
    """Runs the programs on so many ranks. Yields (program, problems by rank, output) of each."""
    for nodes in (1, 2):
        env = {"SMDDP_NODES": str(nodes), **options.get("env", {})}
        these = [seed for seed in seeds if nodes_of(seed) == nodes]
        yield from _run_jobs(these, ranks, {**options, "env": env})


def _run_jobs(seeds, ranks: int, options):
    left = [generate(seed) for seed in seeds]
    with tempfile.TemporaryDirectory(prefix="programs") as name:
        folder = pathlib.Path(name)
        while left:
            job = _job(left[:PER_JOB], ranks, folder, options)
            events = _events(folder)
            ran = [one for one in left[:PER_JOB] if events[one.seed]]
            if not ran:  # the job did not start: its first program answers for that
                ran = left[:1]
            for program in ran:
                problems = _verdict(events[program.seed], ranks, job)
                yield program, problems, job.output if problems else ""
            left = left[len(ran) :]


def describe(program, ranks: int, problems: dict, output: str, brief=False) -> str:
    """Everything about a program that went wrong, or a line for each rank."""
    lines = [f"program {program.seed} ({program.kind}) on {ranks} ranks:"]
    for rank, problem in sorted(problems.items()):
        for kind, what in problem.items():
            text = what["text"] if "text" in what else what
            lines.append(f"  rank {rank}: {kind}: {text}")
    if brief:
        return "\n".join(" ".join(line.split())[:400] for line in lines)
    lines += ["", program.source]
    if not any("wrong" in problem for problem in problems.values()):
        lines += ["its output ended:", output[-2500:], ""]
    command = f"tests/programs/soak.py --seeds {program.seed} --ranks {ranks}"
    lines.append(f"again: {pathlib.Path(sys.executable)} {command}")
    return "\n".join(lines)


def _parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=50, help="how many, from seed --first")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, nargs="+", help="these, instead")
    parser.add_argument("--ranks", type=int, choices=[2, 3, 4], help="default: all in turn")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--brief", action="store_true", help="one line for each failure")
    return parser.parse_args()


def _seeds(args) -> dict:
    """Ranks -> seeds."""
    kinds = list(KINDS)
    seeds, seed = args.seeds or [], args.first
    while not args.seeds and len(seeds) < args.programs:
        if kinds[seed % len(kinds)] in args.kinds:
            seeds.append(seed)
        seed += 1
    by_ranks = collections.defaultdict(list)
    for seed in seeds:
        by_ranks[args.ranks or ranks_of(seed)].append(seed)
    return by_ranks


def main() -> int:
    """Run, print, and count by kind."""
    args = _parse()
    ran, wrong = collections.Counter(), collections.Counter()
    begin = time.monotonic()
    for ranks, seeds in _seeds(args).items():
        if args.seeds:
            print("\n".join(generate(seed).source for seed in seeds))
        for program, problems, output in run_on(seeds, ranks):
            ran[program.kind] += 1
            if problems:
                wrong[program.kind] += 1
                print(describe(program, ranks, problems, output, args.brief), flush=True)
    print("| kind | programs | failed |\n|---|---|---|")
    for kind in KINDS:
        if ran[kind]:
            print(f"| {kind} | {ran[kind]} | {wrong[kind]} |")
    total, failed = sum(ran.values()), sum(wrong.values())
    print(f"| all | {total} | {failed} |\n{time.monotonic() - begin:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
