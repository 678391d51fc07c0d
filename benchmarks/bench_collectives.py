"""Every collective of the core against the MPI one, in turn, in the same processes.

    mpirun -np 2 python benchmarks/bench_collectives.py

Both are called from Python on prepared arguments, the core through ctypes, MPI through mpi4py, so
a call costs either about a microsecond more than from C. Float32; bytes are those of a rank's
input (of allgather: of its output). Broadcasts are in place. A barrier precedes each timed call,
which is over when the slowest rank is, and the table has the median of each and the median ratio
over rounds. No TensorFlow is imported.
"""

import argparse
import ctypes
import json
import time

import numpy as np
from measure import LoadMeter, append_row, format_bytes, format_seconds, median
from mpi4py import MPI

from smddp_tf._job import native
from smddp_tf._job.enums import Kind
from smddp_tf._job.reduce_op import Sum

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


def times(call, comm, repeats):
    """Seconds of each call, of the rank that took longest."""
    seconds = np.empty(repeats)
    for i in range(repeats):
        comm.Barrier()
        start = time.perf_counter()
        call()
        seconds[i] = time.perf_counter() - start
    comm.Allreduce(MPI.IN_PLACE, seconds, MPI.MAX)
    return list(seconds)


def measure(core, comm, name, nbytes, args):
    """One row."""
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
            found = {call: median(times(call, comm, repeats)) for call in turn}
            rounds.append([found[call] for call in calls])
    ratios = sorted(mpi / own for own, mpi in rounds)
    return {
        "case": f"{name}.{nbytes}",
        "np": comm.size,
        "med": median([own for own, _ in rounds]),
        "mpi": median([mpi for _, mpi in rounds]),
        "ratio": median(ratios),
        "ratio_min": ratios[0],
        "ratio_max": ratios[-1],
        **load.row,
    }


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
    if comm.rank == 0:
        print("| collective | bytes | ours | MPI | MPI / ours (min-max) | others' cores |")
        print("|---|---|---|---|---|---|")
    for name in args.only:
        for nbytes in args.sizes:
            row = measure(core, comm, name, nbytes, args)
            if comm.rank == 0:
                others = row.get("others_cores", "-")
                print(
                    f"| {name} | {format_bytes(nbytes)} | {format_seconds(row['med'])} | "
                    f"{format_seconds(row['mpi'])} | {row['ratio']:.2f}x "
                    f"({row['ratio_min']:.2f}-{row['ratio_max']:.2f}) | {others} |",
                    flush=True,
                )
                if args.json:
                    append_row(args.json, row)
    core.smddp_shutdown(0)


if __name__ == "__main__":
    main()
