"""Times the collectives between hosts made of namespaces, on links of a given rate.

    python benchmarks/bench_hosts.py --ranks 1,1 2,2 --rates 1gbit 10gbit
    python benchmarks/bench_hosts.py --libraries old/lib smddp_tf/lib --rounds 5
    python benchmarks/bench_hosts.py --ranks 2,2 --rates 10gbit --cases alltoall64 alltoall4K \
        --settings SMDDP_CHUNK_BYTES=262144 SMDDP_CHUNK_BYTES=1048576

Needs root, or rights to make network namespaces. Each case runs in a job of its own, so several
libraries or settings take turns; a row has the median of the rounds' medians, the smallest and the
largest, and for allreduces how many times as long as the bytes take on the link. "buckets" cuts the
102 MB of ResNet-50's gradients as a training step does: 1 MiB, then 32 MiB each. "alltoall4K" has
4 KiB for each pair of ranks. `--sockets` adds what plain sockets need for the bytes of "resnet50"
between two ranks, in the same rounds (`socket_exchange.py`). `--elastic` adds each case in an
elastic job, whose bytes TCP carries without MPI, and how many times as long that takes: the median
of the rounds' ratios, the smallest and the largest.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "hosts"))

RESNET = 102_228_128
CASES = {"1K": 1 << 10, "64K": 64 << 10, "1M": 1 << 20, "resnet50": RESNET, "buckets": RESNET}
ALLTOALLS = {
    f"alltoall{n}": int(n.replace("K", "")) * (1024 if n.endswith("K") else 1)
    for n in ("64", "512", "1K", "4K", "16K", "64K", "256K", "1024K")
}
FIRST_BUCKET, BUCKET = 1 << 20, 32 << 20
BITS = {"k": 1e3, "m": 1e6, "g": 1e9}


def pieces(case):
    """Return the ranges of bytes that are reduced together."""
    total = CASES[case]
    if case != "buckets":
        return [(0, total)]
    cuts = [0, *range(FIRST_BUCKET, total, BUCKET), total]
    return list(zip(cuts, cuts[1:], strict=False))


def allreduces(core, np, case):
    """Return a function that reduces the case's bytes; it has been called once, and checked."""
    data = np.arange(CASES[case] // 4, dtype=np.float32) % 97 * (core.rank + 1)
    want = np.arange(CASES[case] // 4, dtype=np.float32) % 97 * (core.size * (core.size + 1) // 2)
    parts = [data[a // 4 : b // 4] for a, b in pieces(case)]

    def run():
        for part in parts:
            core.allreduce(part)

    run()
    if not np.array_equal(data, want):
        raise AssertionError(f"{case}: wrong sums on rank {core.rank}")
    data[:] = 0  # repeated sums in place would grow without end
    return run


def alltoalls(core, np, case):
    """Return a function that exchanges the case's bytes; it has been called once, and checked."""
    ranks, each = np.arange(core.size, dtype=np.uint8)[:, None], ALLTOALLS[case]
    mine = np.repeat(ranks + core.rank * 16, each, axis=1)
    if not np.array_equal(core.alltoall(mine), np.repeat(ranks * 16 + core.rank, each, axis=1)):
        raise AssertionError(f"{case}: wrong bytes on rank {core.rank}")
    return lambda: core.alltoall(mine)


def measure(core, np, case, args):
    """Return the times of a case on this rank: as many, and for as long, as asked for."""
    run = (alltoalls if case in ALLTOALLS else allreduces)(core, np, case)
    times, flag = [], np.zeros(1, np.int32)
    begin = time.perf_counter()
    while not flag[0]:
        core.barrier()
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
        enough = len(times) >= args.repeats and time.perf_counter() - begin > args.seconds
        flag[0] = core.rank == 0 and enough
        core.allreduce(flag)
    return times


def worker(args):
    """Run the cases on this rank; rank 0 prints the rows."""
    import numpy as np
    from core import Core

    if os.environ.get("SMDDP_RENDEZVOUS"):
        import smddp_tf.keras as hvd

        hvd.init()  # of an elastic job, which Core() finds begun
    core = Core()
    for case in args.cases:
        times = measure(core, np, case, args)
        if core.rank == 0:
            print(json.dumps({"case": case, "med": statistics.median(times), "n": len(times)}))
    core.shutdown()


def link_seconds(case, hosts, rate):
    """Return how long the bytes that a host sends take on its link."""
    bits = float(rate[:-4]) * BITS[rate[-4].lower()]
    return CASES[case] * 2 * (hosts - 1) / hosts * 8 / bits


def run_sockets(hosts, args):
    """Return how long plain sockets take for the bytes of an allreduce between the two hosts."""
    program = [sys.executable, pathlib.Path(__file__).with_name("socket_exchange.py")]
    program += ["--address", hosts.addresses[0], "--bytes", RESNET, "--repeats", args.repeats]
    output = hosts.mpirun([1, 1], program, timeout=600)
    rows = [json.loads(line) for line in output.splitlines() if line.startswith('{"case"')]
    return rows[0]["med"]


def run_job(hosts, ranks, variant, args, elastic=False):
    """Return case -> seconds of one job."""
    program = [sys.executable, __file__, "--worker", "--seconds", args.seconds]
    program += ["--repeats", args.repeats, "--cases"]
    library, setting = variant
    env = {"SMDDP_LIBRARY_DIR": str(pathlib.Path(library).resolve()), "OMP_NUM_THREADS": "1"}
    env.update([setting.split("=", 1)] if setting else [])
    program += args.cases
    if elastic:
        options = ["--min-np", sum(ranks), "--no-tag-output"]
        env["PYTHONPATH"] = str(ROOT)
        output = hosts.smddprun(ranks, program, timeout=600, env=env, options=options)
    else:
        output = hosts.mpirun(ranks, program, timeout=600, env=env)
    rows = [json.loads(line) for line in output.splitlines() if line.startswith('{"case"')]
    return {row["case"]: row["med"] for row in rows}


def compare(ranks, rate, args):
    """Run libraries and settings in turn and print a row for each case and each of them."""
    from namespaces import Hosts

    variants = [(library, setting) for library in args.libraries for setting in args.settings]
    found = {variant: {case: [] for case in args.cases} for variant in variants}
    elastic = {variant: {case: [] for case in args.cases} for variant in variants}
    by_sockets = []
    with Hosts(len(ranks), rate=rate) as hosts:
        for _ in range(args.rounds):
            for variant in variants:
                for case, seconds in run_job(hosts, ranks, variant, args).items():
                    found[variant][case].append(seconds)
                if args.elastic:
                    for case, seconds in run_job(hosts, ranks, variant, args, elastic=True).items():
                        elastic[variant][case].append(seconds)
            if args.sockets and ranks == [1, 1]:
                by_sockets.append(run_sockets(hosts, args))
    for case in args.cases:
        for variant in variants:
            name, own = " ".join(variant).strip(), elastic[variant][case]
            print_row(ranks, rate, case, name, found[variant][case])
            if own:
                print_row(ranks, rate, case, f"{name} elastic", own)
                ratios = [a / b for a, b in zip(own, found[variant][case], strict=True)]
                middle = f"{statistics.median(ratios):.3f}"
                print(f"elastic: {middle}x ({min(ratios):.3f}-{max(ratios):.3f})", flush=True)
    if by_sockets:
        print_row(ranks, rate, "resnet50", "plain sockets", by_sockets)


def print_row(ranks, rate, case, name, times):
    """Print the median of the times, the smallest and the largest."""
    middle = statistics.median(times)
    large = CASES.get(case, 0) >= 1 << 20
    ratio = middle / link_seconds(case, len(ranks), rate) if large else 0
    print(
        f"| {'+'.join(map(str, ranks))} | {rate} | {case} | {name} | {middle * 1e3:.3f} ms"
        f" ({min(times) * 1e3:.3f}-{max(times) * 1e3:.3f})"
        f" | {f'{ratio:.2f}x of the link' if large else ''} |",
        flush=True,
    )


def main():
    """Parse the arguments; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", nargs="+", default=["1,1"], help="of each host: 1,1 or 2,2")
    parser.add_argument("--rates", nargs="+", default=["1gbit", "10gbit"], help="as tc writes them")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=[*CASES, *ALLTOALLS])
    parser.add_argument("--libraries", nargs="+", default=[str(ROOT / "smddp_tf" / "lib")])
    parser.add_argument("--settings", nargs="+", default=[""], help="NAME=VALUE of an option each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5, help="of each case, at least")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each case, at least")
    parser.add_argument("--sockets", action="store_true", help="measure plain sockets too")
    parser.add_argument("--elastic", action="store_true", help="measure elastic jobs too")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return
    for ranks in args.ranks:
        for rate in args.rates:
            compare([int(n) for n in ranks.split(",")], rate, args)


if __name__ == "__main__":
    main()
