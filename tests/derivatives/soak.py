"""Runs random programs that differentiate through collectives; tells which went wrong.

    soak.py --programs 200                  on 2 and 3 ranks in turn
    soak.py --seeds 17 --ranks 3            one of them again; it is printed first
    soak.py --source FILE --ways jit        a program of your own, such as a smaller one

"refused" counts what is known not to work, or fails in TensorFlow without collectives too.
"""

import argparse
import collections
import json
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "multirank")]

import launcher  # noqa: E402
from grammar import generate  # noqa: E402

# How each program runs; "mixed" is an eager step with functions.
WAYS = ["eager", "mixed", "function", "saved", "unoptimized", "threads"]
WAYS_OF_COMPILED = ["mixed", "function", "jit"]
PER_JOB = 80
ENVIRONMENT = {
    "SMDDP_TIMEOUT_SECONDS": "40",  # before a program's own limit
    "SMDDP_FIRST_BUCKET_BYTES": "40",  # small buckets make several
    "SMDDP_BUCKET_BYTES": "100",
}
START_SECONDS, SECONDS_EACH = 60, 30


def ways_of(seed: int, wanted=None) -> list:
    """The ways of a program that are wanted, as [seed, way] each."""
    ways = WAYS_OF_COMPILED if generate(seed)[1] else WAYS
    return [[seed, way] for way in ways if not wanted or way in wanted]


def _job(todo, ranks: int, folder, sources, python) -> launcher.Job:
    for path in folder.iterdir():
        if path.is_file():
            path.unlink()
    for seed, _ in todo:
        source = sources.get(seed) or generate(seed)[0]
        (folder / f"program{seed}.py").write_text(source)
    (folder / "programs.json").write_text(json.dumps(todo))
    env = ENVIRONMENT
    command = [*launcher.mpirun(ranks), *launcher.warm_python(python, env), HERE / "rank.py"]
    limit = START_SECONDS + SECONDS_EACH * len(todo)
    code, output, timed_out = launcher.run_command([*command, folder], timeout=limit, env=env)
    where = {int(path.name[6:]): path.read_text() for path in folder.glob("stacks*")}
    return launcher.Job(code, output, {}, timed_out, where)


def _verdicts(folder, ranks: int) -> dict:
    """(seed, way) -> each rank's [verdict, text], for what was begun."""
    found: dict = collections.defaultdict(lambda: [["unfinished", ""]] * ranks)
    for path in folder.glob("progress*"):
        for line in path.read_text().splitlines():
            seed, way, verdict, text = json.loads(line)
            by_rank = list(found[seed, way])
            if verdict != "begin":
                by_rank[int(path.name[8:])] = [verdict, text]
            found[seed, way] = by_rank
    return found


def run_on(todo, ranks: int, sources=None, python=None):
    """Runs [seed, way] pairs. Yields (seed, way, verdict, text about it) of each."""
    with tempfile.TemporaryDirectory(prefix="derivatives") as name:
        folder = pathlib.Path(name)
        while todo:
            job = _job(todo[:PER_JOB], ranks, folder, sources or {}, python)
            found = _verdicts(folder, ranks)
            ran = [one for one in todo[:PER_JOB] if tuple(one) in found] or todo[:1]
            for seed, way in ran:
                by_rank = found[seed, way]
                kinds = {verdict for verdict, _ in by_rank}
                order = ["wrong", "error", "unfinished", "refused", "right"]
                verdict = next(one for one in order if one in kinds)
                text = "\n".join(f"rank {i}: {' '.join(one)}" for i, one in enumerate(by_rank))
                if verdict in ("error", "unfinished"):
                    text += f"\nits output ended:\n{job.output[-2500:]}\n{job.where}"
                yield seed, way, verdict, text
            todo = todo[len(ran) :]


def describe(seed: int, way: str, ranks: int, verdict: str, text: str) -> str:
    """Everything about a program that went wrong."""
    again = f"tests/derivatives/soak.py --seeds {seed} --ways {way} --ranks {ranks}"
    lines = [f"program {seed} ({way}) on {ranks} ranks: {verdict}", text, generate(seed)[0]]
    return "\n".join([*lines, f"again: {pathlib.Path(sys.executable)} {again}"])


def _parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=40, help="how many, from seed --first")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, nargs="+", help="these, instead")
    parser.add_argument("--source", type=pathlib.Path, help="this program, instead")
    parser.add_argument("--ways", nargs="+", choices=sorted({*WAYS, *WAYS_OF_COMPILED}))
    parser.add_argument("--ranks", type=int, help="default: 2 and 3 in turn")
    parser.add_argument("--python", help="of another environment")
    return parser.parse_args()


def main() -> int:
    """Run, print, and count."""
    args = _parse()
    seeds = args.seeds or range(args.first, args.first + args.programs)
    if args.seeds:
        print("\n".join(generate(seed)[0] for seed in seeds))
    by_ranks = collections.defaultdict(list)
    for seed in seeds if not args.source else ():
        by_ranks[args.ranks or 2 + seed % 2] += ways_of(seed, args.ways)
    sources = {}
    if args.source:
        sources[0] = args.source.read_text()
        by_ranks[args.ranks or 2] = [[0, way] for way in args.ways or WAYS]
    counts = collections.Counter()
    for ranks, todo in by_ranks.items():
        for seed, way, verdict, text in run_on(todo, ranks, sources, args.python):
            counts[verdict] += 1
            if verdict not in ("right", "refused"):
                print(describe(seed, way, ranks, verdict, text), flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return int(any(counts[verdict] for verdict in ("wrong", "error", "unfinished")))


if __name__ == "__main__":
    sys.exit(main())
