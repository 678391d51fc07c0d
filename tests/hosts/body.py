"""What a rank does in test_hosts.py: every collective, checked; then prints a line of JSON."""

import json
import pathlib
import sys
import zlib

import core as c
import numpy as np

OPS = {c.SUM: np.add, c.MIN: np.minimum, c.MAX: np.maximum}


def values(rank, count, dtype):
    """Small whole numbers that differ between ranks; sums of a few are exact in every dtype."""
    return ((np.arange(count) * 7 + rank * 3) % 11).astype(dtype)


def as_bfloat16(array):
    """Exact for small whole numbers: the upper half of a float32."""
    return (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def check(got, want, what):
    if not np.array_equal(got, want):
        wrong = np.flatnonzero(np.asarray(got) != np.asarray(want))
        raise AssertionError(f"{what}: {len(wrong)} wrong elements, the first at {wrong[0]}")


def reductions(core):
    for dtype in c.DTYPES:
        for count in (1, 5, 250, 3000, 700_001):
            for op, combine in OPS.items():
                want = combine.reduce([values(r, count, dtype) for r in range(core.size)])
                got = core.allreduce(values(core.rank, count, dtype), op=op)
                check(got, want.astype(dtype), f"allreduce {op} of {count} {dtype}")
    for count in (9, 300_001):
        total = sum(values(r, count, np.float32) for r in range(core.size))
        mine = as_bfloat16(values(core.rank, count, np.float32))
        check(core.allreduce(mine, dtype=c.BFLOAT16), as_bfloat16(total), f"bfloat16 {count}")
        whole = sum(values(r, count, np.int64) for r in range(core.size))
        mean = core.allreduce(values(core.rank, count, np.int32), op=c.AVERAGE)
        check(mean, whole // core.size, f"average of {count} int32")
        # Sums of bytes wrap, whichever ranks are added first.
        loud = (values(core.rank, count, np.int64) * 25).astype(np.uint8)
        check(core.allreduce(loud), (whole * 25).astype(np.uint8), f"uint8 wraps, {count}")


def same_bits(core):
    """Sums that round have the same bits on all ranks."""
    for dtype, count in (("float32", 100), ("float32", 600_000), ("float16", 600_000)):
        mine = np.random.default_rng(core.rank).standard_normal(count).astype(dtype)
        crc = np.array([zlib.crc32(core.allreduce(mine).tobytes())], np.int64)
        if len(set(core.allgather(crc).ravel().tolist())) != 1:
            raise AssertionError(f"the ranks hold different bits of {count} {dtype}")


def moves(core):
    ranks = range(core.size)
    for count in (1, 4099, 400_000):
        everything = np.stack([values(r, count, np.float32) for r in ranks])
        check(core.allgather(values(core.rank, count, np.float32)), everything, "allgather")
        for root in ranks:
            got = core.run(c.BROADCAST, values(core.rank, count, np.float32), root=root)
            check(got, everything[root], f"broadcast from {root}")
        mine = np.stack([values(core.rank * 10 + p, count, np.int32) for p in ranks])
        want = np.stack([values(p * 10 + core.rank, count, np.int32) for p in ranks])
        check(core.alltoall(mine), want, "alltoall")
    mine = np.stack([values(core.rank * 10 + p, 1000, np.int32) for p in ranks])
    want = np.stack([values(p * 10 + core.rank, 1000, np.int32) for p in ranks])
    check(core.alltoall(mine), want, "alltoall by host")
    for rows in (1, 7, 5003):
        total = sum(values(r, rows * 3, np.float32) for r in ranks).reshape(rows, 3)
        got = core.reducescatter(values(core.rank, rows * 3, np.float32).reshape(rows, 3))
        check(got, np.array_split(total, core.size)[core.rank], "reducescatter")


def mismatch(core):
    """An error on all ranks that names the odd one; then the channel works again."""
    for count, odd in ((4, 5), (4, 500_000), (500_000, 4)):
        mine = np.ones(odd if core.rank == 1 else count, np.float32)
        try:
            core.allreduce(mine, name="odd")
        except c.CoreError as error:
            if f"[{odd}]" not in str(error) or "rank 1" not in str(error):
                raise
        else:
            raise AssertionError("unequal shapes gave no error")
    check(core.allreduce(np.ones(3, np.float32)), np.full(3, core.size), "after a mismatch")


def sent_bytes():
    """What this host has sent so far."""
    lines = pathlib.Path("/proc/net/dev").read_text().splitlines()
    return int(next(line for line in lines if "eth0:" in line).split()[9])


def traffic(core):
    """Bytes that this host sent for a collective, as a multiple of those that it needs to send."""
    here = int(np.sum(core.allgather(np.array([core.node])) == core.node))
    away, each = core.size - here, 16 << 20

    def measured(need, call, *args, **options):
        core.barrier()
        before = sent_bytes()
        call(*args, **options)
        core.barrier()
        return (sent_bytes() - before) / need

    sums = each * 2 * (core.nodes - 1) / core.nodes
    wide, narrow = np.zeros(each // 4, np.float32), np.zeros(each, np.uint8)
    half = np.zeros(each // 2, np.uint16)
    rows = np.zeros((core.size * 64, each // core.size // 256), np.float32)
    found = {
        "float32": measured(sums, core.allreduce, wide),
        "uint8": measured(sums, core.allreduce, narrow),
        "bfloat16": measured(sums, core.allreduce, half, dtype=c.BFLOAT16),
        "allgather": measured(each * here * (core.nodes - 1), core.allgather, wide),
        "reducescatter": measured(rows.nbytes * away / core.size, core.reducescatter, rows),
    }
    # The last rank's host sends to the others.
    sent = measured(each * (core.nodes - 1), core.run, c.BROADCAST, wide, root=core.size - 1)
    return {**found, "broadcast": sent} if core.node == core.nodes - 1 else found


def main():
    core = c.Core()
    for part in (reductions, same_bits, moves, mismatch):
        part(core)
    place = [core.rank, core.node, core.local_rank]
    name = pathlib.Path("/proc/sys/kernel/hostname").read_text().strip()
    print(json.dumps({"place": place, "host": name, "traffic": traffic(core)}), flush=True)
    core.shutdown()


if __name__ == "__main__":
    sys.exit(main())
