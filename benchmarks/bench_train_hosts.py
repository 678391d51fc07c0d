"""A training step between hosts made of namespaces, on links of a given rate, against Horovod.

    python benchmarks/bench_train_hosts.py --ranks 1,1 2,2 --rates 1gbit 10gbit --models cnn mlp

Needs what `bench_hosts.py` and `peers.py` need: rights to make network namespaces, and Horovod's
environment, which is made on first use. The contestants (no reduction, ours, Horovod with both its
settings) take turns, each in a job of its own on the same TensorFlow; the step is that of
`bench_train.py`. A row has the median of the rounds' medians, the smallest and the largest; what
the step takes above one without reduction, in the same round; and Horovod's time over ours.
"""

import argparse
import pathlib
import statistics
import sys
import tempfile

from environments import make_peers
from goals import DEFAULT_CYCLE, OURS, SHORT_CYCLE
from measure import read_rows

ROOT = pathlib.Path(__file__).resolve().parents[1]
HERE = ROOT / "benchmarks"
sys.path.insert(0, str(ROOT / "tests" / "hosts"))

NONE = "no reduction"
HOROVOD = "horovod.tensorflow"
CONTESTANTS = {
    NONE: ("none", {}),
    OURS: ("smddp_tf", {"PYTHONPATH": str(ROOT)}),
    DEFAULT_CYCLE: (HOROVOD, {}),
    SHORT_CYCLE: (HOROVOD, {"HOROVOD_CYCLE_TIME": "0.1"}),
}


def run_job(hosts, ranks, name, venv, args):
    """Return model -> seconds of a step, of one job."""
    library, env = CONTESTANTS[name]
    with tempfile.TemporaryDirectory() as folder:
        rows = pathlib.Path(folder, "rows.jsonl")
        program = [venv / "bin" / "python", HERE / "bench_train.py", "--lib", library]
        program += ["--models", ",".join(args.models), "--scale", args.scale, "--json", rows]
        mpirun = venv / "bin" / "mpirun"
        hosts.mpirun(ranks, program, timeout=args.timeout, env=env, mpirun=mpirun)
        return {row["model"]: row["med"] for row in read_rows(rows)}


def print_rows(shape, rate, model, rounds):
    """Print a line for each contestant; rounds: of each, contestant -> seconds."""
    for name in CONTESTANTS:
        times = sorted(one[name] * 1e3 for one in rounds)
        above = statistics.median(one[name] - one[NONE] for one in rounds) * 1e3
        ratio = statistics.median(one[name] / one[OURS] for one in rounds)
        print(
            f"| {shape} | {rate} | {model} | {name} | {statistics.median(times):.1f} ms"
            f" ({times[0]:.1f}-{times[-1]:.1f}) | {above:+.1f} ms | {ratio:.2f} |",
            flush=True,
        )


def compare(ranks, rate, venv, args):
    """Run the contestants in turn, each round beginning with another."""
    from namespaces import Hosts

    rounds = []
    with Hosts(len(ranks), rate=rate) as hosts:
        for number in range(args.rounds):
            turn = number % len(CONTESTANTS)
            names = [*CONTESTANTS][turn:] + [*CONTESTANTS][:turn]
            rounds.append({name: run_job(hosts, ranks, name, venv, args) for name in names})
    for model in args.models:
        of_model = [{name: found[model] for name, found in one.items()} for one in rounds]
        print_rows("+".join(map(str, ranks)), rate, model, of_model)


def main():
    """Parse the arguments; see the top of this file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", nargs="+", default=["1,1"], help="of each host: 1,1 or 2,2")
    parser.add_argument("--rates", nargs="+", default=["1gbit", "10gbit"], help="as tc writes them")
    parser.add_argument("--models", nargs="+", default=["cnn", "mlp"], help="of bench_train.py")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", default="0.5", help="multiplies the steps of bench_train.py")
    parser.add_argument("--timeout", type=int, default=300, help="seconds for each job")
    parser.add_argument("--peers-venv", type=pathlib.Path, default=ROOT / ".venv-peers")
    args = parser.parse_args()
    venv = make_peers(args.peers_venv)
    print("| ranks | link | model | | step | above no reduction | times ours |")
    print("|---|---|---|---|---|---|---|")
    for rate in args.rates:
        for ranks in args.ranks:
            compare([int(part) for part in ranks.split(",")], rate, venv, args)


if __name__ == "__main__":
    main()
