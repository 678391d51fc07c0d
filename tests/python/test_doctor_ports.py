"""Connections between hosts are tried both ways, on hosts that are network namespaces."""

import errno
import json
import os
import subprocess
import sys
import textwrap

import pytest

from smddp_tf.doctor import ports
from smddp_tf.doctor.findings import ERROR

NAMES = ["10.77.0.1", "10.77.0.2"]
PORT = 50123

# Two hosts in namespaces that end with this script; what is tried runs in both at once.
ON_TWO_HOSTS = """
set -e
mount -t tmpfs tmpfs /run
ip netns add other
ip link add here type veth peer name there netns other
ip addr add 10.77.0.1/24 dev here
ip -n other addr add 10.77.0.2/24 dev there
ip link set here up
ip -n other link set there up
{block}
ip netns exec other "$@" 1 &
"$@" 0
wait
"""
# All that leaves for the other host's port is dropped, as its firewall would.
BLOCK = """
tc qdisc add dev here root handle 1: htb
tc class add dev here parent 1: classid 1:2 htb rate 8kbit
tc qdisc add dev here parent 1:2 bfifo limit 1
tc filter add dev here parent 1: protocol ip u32 match ip dport 50123 0xffff flowid 1:2
"""
TRY = f"""
import json, sys
from smddp_tf.doctor import ports
print(json.dumps(ports.try_ports({NAMES!r}, int(sys.argv[1]), {PORT}, seconds=3)))
"""


def on_two_hosts(block: str, *words) -> subprocess.CompletedProcess:
    """Runs words 0 on one host and words 1 on the other."""
    script = textwrap.dedent(ON_TWO_HOSTS).format(block=block)
    return subprocess.run(
        ["unshare", "-m", "-n", "sh", "-c", script, "sh", *words],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def results(block: str) -> list:
    """What try_ports() returned on each host; skips where there can be no such hosts."""
    tried = on_two_hosts(block, "true")
    if tried.returncode != 0:
        pytest.skip(f"no hosts of network namespaces: {tried.stderr.strip()[-200:]}")
    ran = on_two_hosts(block, sys.executable, "-c", TRY)
    assert ran.returncode == 0, ran.stderr
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    return sorted(found, key=lambda one: one["index"])


def test_a_sound_network():
    """Both directions are found open."""
    found = results("")
    assert [one["to"] for one in found] == [{NAMES[1]: ""}, {NAMES[0]: ""}]
    assert [one["from"] for one in found] == [{NAMES[1]: True}, {NAMES[0]: True}]
    assert [ports.check(one) for one in found] == [[], []]


def test_one_direction_is_blocked():
    """Each side says which one, and names the rule."""
    here, there = map(ports.check, results(BLOCK))
    assert [one.level for one in here + there] == [ERROR, ERROR]
    assert here[0].what == (
        f"{NAMES[0]} cannot connect to {NAMES[1]} (port {PORT}: no answer), but {NAMES[1]} to "
        f"{NAMES[0]}"
    )
    assert there[0].what == (
        f"{NAMES[0]} did not connect to {NAMES[1]} (port {PORT}), but {NAMES[1]} can to {NAMES[0]}"
    )
    for finding in here + there:
        assert f"allow all TCP ports from {NAMES[0]} to {NAMES[1]}" in finding.remedy


def test_names_that_cannot_be_resolved():
    """Nobody answers under them; the attempts end at the limit."""
    found = {"names": ["a", "b"], "index": 0, "port": 1, "to": {"b": "why"}, "from": {"b": False}}
    (finding,) = ports.check(found)
    assert finding.what == "a and b cannot connect to each other (port 1: why)"


@pytest.mark.parametrize("number", [errno.ENETUNREACH, errno.EHOSTUNREACH])
def test_networks_without_a_route(number):
    """No rule is missing then."""
    why = os.strerror(number)
    found = {"names": ["a", "b"], "index": 0, "port": 1, "to": {"b": why}, "from": {"b": False}}
    (finding,) = ports.check(found)
    assert finding.what == f"a and b cannot connect to each other (port 1: {why})"
    assert finding.remedy.startswith("a route between the networks of a and b")
    assert "security group" not in finding.remedy


def test_who_tries():
    """The first rank of each host of smddprun's list."""
    told = {"SMDDP_LAUNCH_HOSTS": "a:2,10.0.0.2:1", "SMDDP_LAUNCH_PORT": "50000"}
    names = ["a", "10.0.0.2"]
    assert [ports.plan(told, rank) for rank in range(4)] == [
        (names, 0, 50000),
        None,
        (names, 1, 50000),
        None,
    ]
    assert ports.plan({}, 0) is None


def test_a_name_that_cannot_be_resolved():
    """That is no firewall's fault."""
    why = "its name cannot be resolved: Name or service not known"
    found = {"names": ["a", "b"], "index": 0, "port": 1, "to": {"b": why}, "from": {"b": True}}
    (finding,) = ports.check(found)
    assert finding.what == f"a cannot connect to b: {why}"
    assert "/etc/hosts" in finding.remedy and "firewall" not in finding.remedy
