"""Runs a benchmark on hosts made of namespaces, whose links carry no more than a rate.

    python benchmarks/on_hosts.py --ranks 1,1 --rate 1gbit -- bench_optimizer.py --sets resnet50

Needs rights to make network namespaces (tests/hosts/namespaces.py). Prints what the benchmark does.
"""

import argparse
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "hosts"))


def main():
    """Parse the arguments, run it and print its output."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", default="1,1", help="of each host: 1,1 or 2,2")
    parser.add_argument("--rate", default="1gbit", help="as tc writes it")
    parser.add_argument("--timeout", type=int, default=900, help="seconds")
    parser.add_argument("program", nargs="+", help="a script of this folder, and its options")
    args = parser.parse_args()
    from namespaces import Hosts

    script, *options = args.program
    program = [sys.executable, ROOT / "benchmarks" / script, *options]
    ranks = [int(part) for part in args.ranks.split(",")]
    with Hosts(len(ranks), rate=args.rate) as hosts:
        env = {"PYTHONPATH": str(ROOT)}
        print(hosts.mpirun(ranks, program, timeout=args.timeout, env=env))


if __name__ == "__main__":
    main()
