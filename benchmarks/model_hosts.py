"""Computes, and does not run, how long gradients take on many hosts, from the costs of a link.

    python benchmarks/model_hosts.py --latency-us 20 --gbs 12 --copy-gbs 5 --per-node 8

The costs are those of a message and of bytes between hosts, of copies in memory, and
what a message costs the processor that sends and receives it. The model follows the algorithm
(ops/collective/host/hierarchical_allreduce.cc): for each bucket a header exchange, then for each
chunk a sum in the node, an alltoall and an allgather between the owners of a share, and copies in
the node. Chunks are pipelined, so the slower of link and processor sets the pace, and a bucket's
first chunk is waited for. The processor has the messages, and the sums and copies in the node.
simulate_hosts.py plays the same through. Nothing competes for the link. Nothing here was measured
on that many hosts: the table says what would be the limit, not what a cluster does.
"""

import argparse
import math

BUCKETS = [1 << 20, 32 << 20, 32 << 20, 102_228_128 - (65 << 20)]  # ResNet-50's gradients
LINEAR_NODES = 16  # HeaderExchange::linear_nodes
HEADER = 64


def header_seconds(nodes, cost):
    """Return what comparing signatures takes before an operation."""
    message = HEADER + min(1024, max(64, (64 << 10) // nodes // 64 * 64))
    each = cost.latency + cost.message * 2
    if nodes <= LINEAR_NODES:
        return cost.latency + (nodes - 1) * (cost.message * 2 + message * cost.per_byte)
    rounds = math.ceil(math.log2(nodes))
    return rounds * each + (nodes - 1) * message * cost.per_byte


def chunk_bytes(nodes, cost):
    """Return the size of a chunk, by default as core/chunk_bytes.h has it."""
    if cost.chunk_kib:
        return cost.chunk_kib * 1024
    messages = nodes * cost.per_node
    usual = min(nodes << 17, 1 << 20) if cost.per_node == 1 else 1 << 20
    return min(max(usual, messages << 12), 4 << 20)


def bucket_seconds(size, nodes, cost):
    """Return the header's, the link's, the messages' and the node's time for a bucket."""
    chunks = math.ceil(size / chunk_bytes(nodes, cost))
    chunk = size / chunks
    link = 2 * (nodes - 1) / nodes * chunk * cost.per_byte  # both exchanges; all owners share it
    messages = 2 * (nodes - 1) * 2 * cost.message  # sent and received, of each owner
    # Stage, sum and unpack; every rank of the node at once, each at its own rate.
    node = 3 * chunk * cost.copy_per_byte
    pace = max(link, messages + node)
    first = link + messages + node + 2 * cost.latency
    waits = {"link": link, "messages": messages, "copies": node}
    limit = max(waits, key=waits.get)
    return header_seconds(nodes, cost), first + (chunks - 1) * pace, limit


def parser(description):
    """Return a parser of the costs and the numbers of ranks."""
    found = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--latency-us", type=float, default=20)
    found.add_argument("--gbs", type=float, default=12, help="between nodes, GB/s a node")
    found.add_argument("--copy-gbs", type=float, default=5, help="in the node, GB/s a rank")
    found.add_argument("--message-us", type=float, default=1, help="processor's time, each side")
    found.add_argument("--chunk-kib", type=float, help="by default as the library has it")
    found.add_argument("--per-node", type=int, default=8, help="ranks")
    found.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024, 4096])
    return found


def with_costs(args):
    """Return the options with the costs in seconds."""
    args.latency, args.message = args.latency_us * 1e-6, args.message_us * 1e-6
    args.per_byte, args.copy_per_byte = 1e-9 / args.gbs, 1e-9 / args.copy_gbs
    return args


def main():
    """Parse the arguments; see the top of this file."""
    cost = with_costs(parser(__doc__).parse_args())
    print("Computed from a model, not run.")
    print("| ranks | nodes | headers | buckets | a step | limited by |\n|---|---|---|---|---|---|")
    for ranks in cost.ranks:
        nodes = max(2, ranks // cost.per_node)
        found = [bucket_seconds(size, nodes, cost) for size in BUCKETS]
        headers, buckets = sum(one[0] for one in found), sum(one[1] for one in found)
        print(
            f"| {ranks} | {nodes} | {headers * 1e3:.2f} ms | {buckets * 1e3:.1f} ms | "
            f"{(headers + buckets) * 1e3:.1f} ms | {found[-1][2]} |"
        )


if __name__ == "__main__":
    main()
