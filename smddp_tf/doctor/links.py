"""How two ranks reach each other, and what hosts have in common. Pure: the ranks' facts -> text."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence

from smddp_tf.doctor.findings import WARNING, Finding

SHARED, MPI = "shared memory", "MPI"
_EMULATED = "SMDDP_NODES={} emulates nodes"


def transport(one: Mapping, other: Mapping) -> tuple:
    """(transport, why not a faster one, what to do about it) of two ranks, by their facts.

    The facts are machine.facts() with "node", and "reads_peers": "" or why not.
    """
    if one["node"] == other["node"]:
        problem = one["reads_peers"] or other["reads_peers"]
        if not problem:
            return f"{SHARED}, large copies straight from the peer", "", ""
        remedy = "in a container allow process_vm_readv (a newer engine, --cap-add SYS_PTRACE or a "
        remedy += "seccomp profile of your own), or leave it"
        return SHARED, f"large copies take two steps: {problem}", remedy
    if one["boot"] != other["boot"]:
        return _between_machines(one, other)
    if one["emulated_nodes"] not in ("", "0"):
        return MPI, _EMULATED.format(one["emulated_nodes"]), "unset SMDDP_NODES"
    if one["process_namespace"] != other["process_namespace"]:
        remedy = "start all ranks of a machine in one container"
        return MPI, "one machine, but two containers (process namespaces)", remedy
    if one["user"] != other["user"]:
        return MPI, "one machine, but two users", "start all ranks as one user"
    remedy = "SMDDP_LOG_LEVEL=debug shows why; see that /proc is mounted"
    return MPI, "one machine, but the ranks cannot open each other's memory", remedy


def _between_machines(one: Mapping, other: Mapping) -> tuple:
    """transport() of ranks on different machines, by the networks that these have."""
    apart = "on different machines"
    lacking = [rank["host"] for rank in (one, other) if not rank["fabric"]]
    if lacking:
        return MPI, f"{apart}; neither InfiniBand nor EFA on {' and '.join(lacking)}", ""
    if "ob1" in (one["messages"], other["messages"]):
        remedy = "leave out --tcp and --mca pml ob1"
        return MPI, f"{apart}; OMPI_MCA_pml=ob1 keeps MPI from {one['fabric']}", remedy
    return MPI, apart, ""


def check_transports(ranks: Sequence[Mapping]) -> list:
    """Findings about pairs that could be faster. Emulated nodes are meant to be as they are."""
    found = {}
    for i, one in enumerate(ranks):
        for other in ranks[i + 1 :]:
            way, why, remedy = transport(one, other)
            if remedy and not why.startswith("SMDDP_NODES"):
                found[why] = Finding(WARNING, f"ranks use {way}: {why}", remedy)
    return list(found.values())


def _networks(rank: Mapping) -> dict:
    """Network -> interface names, of the IPv4 interfaces that are not loopback."""
    networks: dict = {}
    for interface in rank["interfaces"]:
        if interface["address"] and interface["mask"]:
            text = f"{interface['address']}/{interface['mask']}"
            network = ipaddress.ip_interface(text).network
            if not network.is_loopback:
                networks.setdefault(str(network), set()).add(interface["name"])
    return networks


def check_networks(ranks: Sequence[Mapping]) -> list:
    """Findings about the networks between machines, or containers; `ranks` has one of each."""
    if len(ranks) < 2:
        return []
    findings = []
    common = set.intersection(*(set(_networks(rank)) for rank in ranks))
    if not common:
        remedy = "--nic names each host's interface, if a router connects the networks"
        what = "the hosts have no IPv4 network in common: " + "; ".join(
            f"{rank['host']} is in {', '.join(sorted(_networks(rank))) or 'none'}" for rank in ranks
        )
        findings.append(Finding(WARNING, what, remedy))
    # As docker0 is 172.17.0.1 on every host: a connection to it ends on the host itself.
    addresses: dict = {}
    for rank in ranks:
        for interface in rank["interfaces"]:
            if interface["address"] and not interface["address"].startswith("127."):
                addresses.setdefault(interface["address"], []).append(interface["name"])
    for address, names in addresses.items():
        if len(names) > 1:
            what = f"{names[0]} has the address {address} on {len(names)} hosts"
            remedy = "smddprun --nic with the interface between the hosts, so that MPI skips it"
            findings.append(Finding(WARNING, what, remedy))
    return findings


def pairs_to_measure(nodes: Sequence[int], most: int = 12) -> list:
    """Pairs of ranks to measure, given each rank's node: all of them if they are few.

    Else one pair in each node and one for each two nodes, and not more than `most`.
    """
    everything = [(i, j) for j in range(len(nodes)) for i in range(j)]
    if len(everything) <= most:
        return sorted(everything)
    chosen: dict = {}
    for i, j in sorted(everything):
        chosen.setdefault((nodes[i], nodes[j]), (i, j))
    return sorted(chosen.values())[:most]
