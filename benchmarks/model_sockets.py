"""Computes, and does not run, how long an allreduce takes on a node of two sockets.

    python benchmarks/model_sockets.py --per-socket 2 8 32

It compares the two algorithms of ops/collective/host/: `shm`, in which every rank reads from all
others, and `sockets`, which reduces on each socket first. Costs of writing and reading are what two
ranks measured of each other on one socket and on two (docs/measurements.md, "By distance"; also in
tests/cpp/staging_test.cc): nanoseconds per KiB for one core while others are idle. What all cores
together get from the link between the sockets and from each socket's memory was not measured: the
defaults are usual figures of servers. A reader finds a counter's line after half a ping-pong; of
lines that are looked at in turn, --overlap arrive at a time. Every byte that a rank reads from the
other socket counts as crossing, although ranks may find in their socket's cache what a neighbour
read. Chunks are pipelined, so the slowest of core, link and memory sets the pace. Nothing here was
run on two sockets.
"""

import argparse
import dataclasses
import math

KIB = 1024
SIZES = [32 * KIB, 64 * KIB, 256 * KIB, 1 << 20, 16 << 20, 102_228_128]


@dataclasses.dataclass
class Work:
    """What one rank does for a byte of the payload, and for a chunk."""

    chunk: float  # bytes
    core_ns: float  # per KiB, of its own core
    into_socket: float  # bytes that cross into a socket, of all its ranks
    memory: float  # bytes that one rank moves to and from its socket's memory
    near_lines: int  # counters that it looks at for a chunk
    far_lines: int
    near_hops: int  # waits on the path of a chunk
    far_hops: int


def shm(k, cost):
    """All ranks read from all; half of them are far, so slots are written past the cache."""
    n = 2 * k
    near, far = (k - 1) / n, 1 / 2
    reads = 2 * (near * cost.near_read_past + far * cost.far_read)
    core = (n - 1) / n * cost.far_write + reads
    return Work(
        chunk=cost.chunk_kib * KIB,
        core_ns=core + 2 * cost.tensor,
        into_socket=2 * k * far,
        memory=2 + 3 * (n - 1) / n,  # the tensor in and out; what is staged, and read twice
        near_lines=3 * (k - 1),
        far_lines=3 * k,
        near_hops=0,
        far_hops=2,  # staged, combined
    )


def sockets(k, width, cost):
    """Half a chunk crosses as partial sums, `width` times as wide, and half as results."""
    n, share = 2 * k, 1 / (2 * k)
    near = (k - 1) / k * (cost.near_write + 2 * cost.near_read)
    far = share * (width + 1) * (cost.far_write + cost.far_read) + share * 2 * cost.near_write
    return Work(
        chunk=cost.chunk_kib * KIB * k / (k + width),
        core_ns=near + far + 2 * cost.tensor,
        into_socket=k * share * (width + 1),
        memory=2 + 2 * (width + 1) / n,
        near_lines=3 * (k - 1),
        far_lines=2,  # reduced, summed
        near_hops=1,
        far_hops=3,  # the first chunk is staged by all; reduced, summed; near: combined
    )


def seconds(size, k, work, cost):
    """Return the time of one allreduce, and what limits it."""
    chunks = math.ceil(size / work.chunk)
    chunk = size / chunks
    near, far = cost.near_ping_pong / 2, cost.far_ping_pong / 2
    looks = (work.near_lines * near + work.far_lines * far) / cost.overlap
    limits = {
        "core": (chunk / KIB * work.core_ns + looks) * 1e-9,
        "link": chunk * work.into_socket / (cost.link_gbs * 1e9),
        "memory": chunk * work.memory * k / (cost.memory_gbs * 1e9),
    }
    if size * k < cost.cache_mib << 20:  # the tensors and slots of a socket stay in its cache
        del limits["memory"]
    limit = max(limits, key=limits.get)
    hops = (work.near_hops * near + work.far_hops * far) * 1e-9
    return hops + chunks * limits[limit], limit


def main():
    """Parse the arguments; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-socket", type=int, nargs="+", default=[2, 4, 8, 32], help="ranks")
    parser.add_argument("--width", type=int, default=1, help="2 for 16-bit floats")
    parser.add_argument("--near-ping-pong", type=float, default=120, help="ns")
    parser.add_argument("--far-ping-pong", type=float, default=500, help="ns")
    parser.add_argument("--near-write", type=float, default=50, help="ns per KiB, cached")
    parser.add_argument("--near-read", type=float, default=60, help="of that")
    parser.add_argument("--near-read-past", type=float, default=110, help="of what is past it")
    parser.add_argument("--far-write", type=float, default=60, help="past the cache")
    parser.add_argument("--far-read", type=float, default=100, help="of that")
    parser.add_argument("--tensor", type=float, default=50, help="its own tensor, in or out")
    parser.add_argument("--link-gbs", type=float, default=60, help="between sockets, each way")
    parser.add_argument("--memory-gbs", type=float, default=200, help="of a socket")
    parser.add_argument("--cache-mib", type=int, default=32, help="of a socket")
    parser.add_argument("--overlap", type=float, default=8, help="lines under way at once")
    parser.add_argument("--chunk-kib", type=float, default=256)
    cost = parser.parse_args()
    print("Computed from a model, not run.")
    print("| ranks | payload | shm | limited by | sockets | limited by | ratio |")
    print("|---|---|---|---|---|---|---|")
    for k in cost.per_socket:
        for size in SIZES:
            flat, flat_limit = seconds(size, k, shm(k, cost), cost)
            ours, our_limit = seconds(size, k, sockets(k, cost.width, cost), cost)
            print(
                f"| 2 x {k} | {size / KIB / KIB:.4g} MiB | {flat * 1e3:.3g} ms | {flat_limit} | "
                f"{ours * 1e3:.3g} ms | {our_limit} | {flat / ours:.2f} |"
            )


if __name__ == "__main__":
    main()
