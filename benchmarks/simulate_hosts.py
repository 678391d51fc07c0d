"""Simulates, and does not run, the messages of gradients' allreduces on many hosts.

    python benchmarks/simulate_hosts.py --hosts-per-rack 16 --oversubscription 4 --per-node 8

What model_hosts.py computes by formulas is played through here, step by step: one owner stages,
starts and ends exchanges by the rules of ops/collective/host/hierarchical_allreduce.cc, and each
exchange takes what its fullest link takes, found by laying every message on the links it passes.
All hosts do the same at the same time, so one owner stands for all of them. Three networks: `full`,
where only the hosts' own links are limited; `fat tree`, whose racks share links to the others that
carry 1 / OVERSUBSCRIPTION of their hosts' bytes; and `rails`, where each owner has a network card
and a fat tree of its own. Costs are those of model_hosts.py, whose result is in the table too.
"""

import collections
import dataclasses
import math

import model_hosts
import numpy as np

AHEAD = 2  # kAhead
SLOTS = 4  # kSlots


@dataclasses.dataclass(frozen=True)
class Network:
    """Hosts, and the links between them."""

    name: str
    nodes: int
    owners: int  # of a host
    rails: int  # networks, each with 1 / rails of a host's bytes per second
    rack: int  # hosts of a rack
    oversubscription: float

    def messages(self):
        """Return the most messages of one exchange on a host's link, and between racks.

        Of all owners that share these links. Every message is laid on its links and counted.
        """
        hosts = np.arange(self.nodes)
        racks = hosts // self.rack
        sent = ~np.eye(self.nodes, dtype=bool)  # from, to
        leaves = sent & (racks[:, None] != racks[None, :])
        on_card = self.owners // self.rails
        of_host = max(sent.sum(axis=1).max(), sent.sum(axis=0).max())
        up = np.bincount(racks, leaves.sum(axis=1)).max()
        down = np.bincount(racks, leaves.sum(axis=0)).max()
        return int(of_host) * on_card, int(max(up, down)) * on_card

    def seconds_per_byte(self, per_byte):
        """Return what an exchange takes for each byte of a message between two owners."""
        of_host, of_rack = self.messages()
        in_rack = min(self.rack, self.nodes)
        card = per_byte * self.rails
        return max(of_host * card, of_rack * card * self.oversubscription / in_rack)


class Owner:
    """The work of one rank on one bucket, with a clock."""

    def __init__(self, size, network, cost):
        self._cost, self._network = cost, network
        self._per_byte = network.seconds_per_byte(cost.per_byte)
        chunk = model_hosts.chunk_bytes(network.nodes, cost)
        self.chunks = math.ceil(size / chunk)
        self._chunk = size / self.chunks
        self._part = self._chunk / network.owners / network.nodes
        self._now = self._link_free = 0.0
        self._staged = self._scatters = self._scattered = 0
        self._gathers = self._finished = self._unpacked = 0
        self._in_flight = collections.deque()
        self.messages = self.sent_bytes = 0

    def _compute(self, of_bytes):
        self._now += of_bytes * self._cost.copy_per_byte

    def _start(self, scatter):
        peers = self._network.nodes - 1
        self._now += 2 * peers * self._cost.message
        self.messages += peers
        self.sent_bytes += peers * self._part
        begin = max(self._now, self._link_free)
        self._link_free = begin + self._part * self._per_byte
        self._in_flight.append((self._link_free + self._cost.latency, scatter))

    def _start_next(self):
        if self._scatters < min(self.chunks, self._gathers + AHEAD):
            if self._staged <= self._scatters:
                return False
            self._compute(self._chunk)  # reads every rank's part of its share
            self._scatters += 1
            self._start(True)
            return True
        if self._gathers == self.chunks or self._scattered <= self._gathers:
            return False
        self._compute(self._part * self._network.nodes)
        self._gathers += 1
        self._start(False)
        return True

    def _finish_oldest(self):
        if not self._in_flight or self._in_flight[0][0] > self._now:
            return False
        _, scatter = self._in_flight.popleft()
        if scatter:
            self._scattered += 1
        else:
            self._finished += 1
        return True

    def _copy(self):
        if self._unpacked < self._finished:
            self._unpacked += 1
        elif self._staged < min(self.chunks, self._unpacked + SLOTS):
            self._staged += 1
        else:
            return False
        self._compute(self._chunk)
        return True

    def run(self):
        """Return when the last chunk was unpacked."""
        while self._unpacked < self.chunks:
            if not (self._finish_oldest() or self._start_next() or self._copy()):
                self._now = self._in_flight[0][0]
        return self._now


def networks(nodes, args):
    """Return the three kinds of network of so many hosts."""
    common = {"nodes": nodes, "owners": args.per_node, "rack": args.hosts_per_rack}
    tight = args.oversubscription
    return [
        Network("full", rails=1, oversubscription=0, **common),
        Network("fat tree", rails=1, oversubscription=tight, **common),
        Network("rails", rails=args.per_node, oversubscription=tight, **common),
    ]


def row(ranks, network, args):
    """Return the table's cells for a step's buckets."""
    nodes = network.nodes
    headers = sum(model_hosts.bucket_seconds(b, nodes, args)[0] for b in model_hosts.BUCKETS)
    modelled = headers + sum(
        model_hosts.bucket_seconds(b, nodes, args)[1] for b in model_hosts.BUCKETS
    )
    owners = [Owner(size, network, args) for size in model_hosts.BUCKETS]
    seconds = headers + sum(owner.run() for owner in owners)
    sent = sum(owner.sent_bytes for owner in owners) * network.owners
    least = 2 * (nodes - 1) / nodes * sum(model_hosts.BUCKETS)
    of_host, of_rack = network.messages()
    return [
        str(ranks),
        str(nodes),
        network.name,
        f"{sent / least:.2f}",
        f"{sum(owner.messages for owner in owners)}",
        f"{of_host} / {of_rack}",
        f"{seconds * 1e3:.1f} ms",
        f"{seconds / modelled:.2f}",
    ]


def main():
    """Parse the arguments; see the top of this file."""
    parser = model_hosts.parser(__doc__)
    parser.add_argument("--hosts-per-rack", type=int, default=16)
    parser.add_argument("--oversubscription", type=float, default=4, help="of the racks' links")
    args = model_hosts.with_costs(parser.parse_args())
    print("Simulated, not run.")
    print(
        "| ranks | nodes | network | bytes sent / least | messages of a rank |"
        " messages on a card / between racks | a step | of the model |"
    )
    print("|" + 8 * "---|")
    for ranks in args.ranks:
        nodes = max(2, ranks // args.per_node)
        for network in networks(nodes, args):
            print(f"| {' | '.join(row(ranks, network, args))} |")


if __name__ == "__main__":
    main()
