"""Every collective of the core against the MPI one, in turn, in the same processes.

    mpirun -np 2 python benchmarks/bench_collectives.py

Both are called from Python on prepared arguments, the core through ctypes, MPI through mpi4py, so
a call costs either about a microsecond more than from C. Float32; bytes are those of a rank's
input (of allgather: of its output). Broadcasts are in place. A barrier precedes each timed call,
which is over when the slowest rank is, and lies between two ping-pongs (ping_pong.h). The table has
a line for each distance between the cores of ranks 0 and 1 that was met: the median of each, and
the median ratio over the rounds in which both met it. No TensorFlow is imported.
"""

import argparse
import ctypes
import json
import os
import time

# numpy asks for huge pages, which TensorFlow and PyTorch do not have: the kernel copies those of a
# peer twice as fast.
os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")

import numpy as np  # noqa: E402
from launch import build_ping_pong
from measure import (
    LoadMeter,
    DISTANCES,
    PingPong,
    append_row,
    format_bytes,
    format_seconds,
    median,
    medians_by_distance,
)
from mpi4py import MPI

from smddp_tf._src.job import native
from smddp_tf._src.job.enums import Kind
from smddp_tf._src.job.reduce_op import Sum

FLOAT32 = 1  # smddp_dtype
KINDS = [kind.name.lower() for kind in Kind if kind != Kind.BARRIER]


def ours(core, name, given, result):
    """A call of the core; what it points to lives as long as the function."""
    count = given.size
    dims = (ctypes.c_int64 * 1)(count)
    source = result if name == "broadcast" else given
    tensor = native.Tensor(source.ctypes.data, result.ctypes.data, 1, dims)
    request = native.Request(
        kind=Kind[name.upper()],
        dtype=FLOAT32,
        op=Sum,
        prescale=1.0,
        postscale=1.0,
        name=b"bench",
        num_tensors=1,
        tensors=ctypes.pointer(tensor),
    )
    pointer = ctypes.byref(request)

    def call(kept=(tensor, dims, request)):
        if core.smddp_run(pointer) != 0:
            raise SystemExit(native.last_error())

    return call


def theirs(comm, name, given, result):
    """A call of MPI."""
    return {
        "allreduce": lambda: comm.Allreduce(given, result),
        "broadcast": lambda: comm.Bcast(result),
        "allgather": lambda: comm.Allgather(given, result),
        "alltoall": lambda: comm.Alltoall(given, result),
        "reducescatter": lambda: comm.Reduce_scatter_block(given, result),
    }[name]


def arrays(name, nbytes, comm):
    """Input, output, and what the output must be; element i of rank r is r + 1 + i % 7."""
    size, rank = comm.size, comm.rank
    count = max(size, nbytes // 4 // size * size)
    pattern = (np.arange(count) % 7).astype(np.float32)
    given = pattern + rank + 1
    part = count // size
    total = pattern * size + size * (size + 1) / 2
    if name == "allreduce":
        return given, np.empty_like(given), total
    if name == "broadcast":
        return given, given.copy(), pattern + 1
    if name == "allgather":
        one = given[:part].copy()
        return (
            one,
            np.empty(count, np.float32),
            np.concatenate([pattern[:part] + r + 1 for r in range(size)]),
        )
    own = slice(rank * part, (rank + 1) * part)
    if name == "alltoall":
        want = np.concatenate([pattern[own] + r + 1 for r in range(size)])
        return given, np.empty_like(given), want
    return given, np.empty(part, np.float32), total[own].astype(np.float32)


def times(call, comm, ping_pong, repeats):
    """Distance -> median seconds of a call, of the rank that took longest; "" if none is known."""
    seconds, pings = np.empty(repeats), []
    for i in range(repeats):
        before = ping_pong()
        comm.Barrier()
        start = time.perf_counter()
        call()
        seconds[i] = time.perf_counter() - start
        pings.append((before, ping_pong()))
    comm.Allreduce(MPI.IN_PLACE, seconds, MPI.MAX)
    return medians_by_distance(list(seconds), pings)


def compared(rounds, distance):
    """The figures of the rounds in which both sides met the distance."""
    pairs = [(own[distance], mpi[distance]) for own, mpi in rounds if distance in own.keys() & mpi]
    if not pairs:
        return None
    ratios = sorted(mpi / own for own, mpi in pairs)
    return {
        "med": median([own for own, _ in pairs]),
        "mpi": median([mpi for _, mpi in pairs]),
        "ratio": median(ratios),
        "ratio_min": ratios[0],
        "ratio_max": ratios[-1],
        "rounds": len(pairs),
    }


def measure(core, comm, ping_pong, name, nbytes, args):
    """A row for each distance that was met."""
    given, result, want = arrays(name, nbytes, comm)
    calls = [ours(core, name, given, result), theirs(comm, name, given, result)]
    for call in calls:
        if name == "broadcast":
            result[:] = given
        call()
        if not np.array_equal(result, want):
            raise SystemExit(f"rank {comm.rank}: {name} of {nbytes} bytes is wrong")
    repeats = max(5, min(1000, int(args.scale * (1 << 27) / nbytes / 4)))
    rounds = []
    with LoadMeter() as load:
        for number in range(args.rounds):
            turn = calls if number % 2 == 0 else calls[::-1]
            found = {call: times(call, comm, ping_pong, repeats) for call in turn}
            rounds.append([found[call] for call in calls])
    met = {distance: figures for distance in DISTANCES if (figures := compared(rounds, distance))}
    case = {"case": f"{name}.{nbytes}", "np": comm.size}
    return [{**case, "distance": d, **figures, **load.row} for d, figures in met.items()]


def start_ping_pong(comm):
    """Compile the ping-pong, once, and meet the other rank."""
    path = build_ping_pong() if comm.rank == 0 else None
    os.environ["BENCH_PING_PONG"] = str(comm.bcast(path))
    return PingPong(comm.rank, comm.size)


def main():
    """Print a table, and append rows to a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=json.loads, default=[1 << 10, 1 << 16, 1 << 20, 1 << 26])
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the repeats")
    parser.add_argument("--json", default="", help="append rows to this file")
    args = parser.parse_args()
    core, comm = native.core(), MPI.COMM_WORLD
    if core.smddp_init() != 0:
        raise SystemExit(native.last_error())
    ping_pong = start_ping_pong(comm)
    if comm.rank == 0:
        print("| collective | bytes | cores | ours | MPI | MPI / ours (min-max) | rounds | load |")
        print("|---|---|---|---|---|---|---|---|")
    for name in args.only:
        for nbytes in args.sizes:
            rows = measure(core, comm, ping_pong, name, nbytes, args)
            # Ranks may differ over a distance at its limit; rank 0's word counts.
            for row in rows if comm.rank == 0 else ():
                print(
                    f"| {name} | {format_bytes(nbytes)} | {row['distance'] or '-'} | "
                    f"{format_seconds(row['med'])} | {format_seconds(row['mpi'])} | "
                    f"{row['ratio']:.2f}x ({row['ratio_min']:.2f}-{row['ratio_max']:.2f}) | "
                    f"{row['rounds']} | {row.get('others_cores', '-')} |",
                    flush=True,
                )
                if args.json:
                    append_row(args.json, row)
    core.smddp_shutdown(0)


if __name__ == "__main__":
    main()
