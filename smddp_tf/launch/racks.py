"""Hosts in the order of racks, by what Slurm knows of its switches.

Slurm sorts an allocation's hosts by name. Ranks fill hosts in order, so where names alternate
between racks, so would ranks. SLURM_TOPOLOGY_ADDR tells a task about its own host only; scontrol
knows all switches.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence

from smddp_tf.launch import LaunchError
from smddp_tf.launch.hosts import Host, expand_nodelist

_SECONDS = 10
# SwitchName=rack1 Level=0 LinkSpeed=1 Nodes=n[1,3], or BlockName=b1 Nodes=n[1-4]
_SWITCH = re.compile(r"^\s*\w+Name=\S+.*?\bNodes=(\S+)", re.MULTILINE)


def ask(environment: Mapping[str, str]) -> str:
    """What `scontrol show topology` says; "" outside of Slurm, or if it does not answer."""
    if not environment.get("SLURM_JOB_ID"):
        return ""
    command = ["scontrol", "show", "topology"]
    try:
        ran = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout.decode(errors="replace") if ran.returncode == 0 else ""


def _switches(topology: str) -> list:
    """The hosts below each switch or block, the largest first; without what is not understood."""
    switches = []
    for nodes in _SWITCH.findall(topology):
        try:
            switches.append(set(expand_nodelist(nodes)))
        except LaunchError:
            continue
    return sorted(switches, key=len, reverse=True)


def ordered(hosts: Sequence[Host], topology: str) -> list:
    """The hosts with those of a switch beside each other, at each level of switches.

    Switches come in the order of their first hosts, and the hosts of one stay in their order.
    """
    places = {host.name: place for place, host in enumerate(hosts)}
    found = [sorted(places[name] for name in nodes & set(places)) for nodes in _switches(topology)]

    def key(place: int) -> list:
        # The first host of each switch above this one, from the top down.
        return [*(below[0] for below in found if place in below), place]

    return [hosts[place] for place in sorted(range(len(hosts)), key=key)]
