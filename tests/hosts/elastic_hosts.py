"""Elastic jobs on several hosts: a host is lost, its link is cut, hosts come and go.

`make test-elastic-hosts` runs all of it; test_elastic_hosts.py has what `make test` runs.
"""

import json
import pathlib
import sys
import threading
import time

import pytest
from namespaces import Hosts, why_not

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "elastic"))

import storm  # noqa: E402
import storm_hosts  # noqa: E402

SCRIPT = ROOT / "tests/scripts/elastic_ranks.py"


@pytest.fixture(autouse=True)
def _needs_hosts():
    reason = why_not()
    if reason:
        pytest.skip(reason)


def train(hosts, folder, words, options, ranks=None, then=None):
    """(output, what the ranks that ended well have left, by slot).

    Args:
      hosts: where.
      folder: for files.
      words: of elastic_ranks.py.
      options: of smddprun.
      ranks: of each host.
      then: (a file's name, a function to call once that file is in the folder).
    """
    env = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    faults = []

    def wait():
        deadline = time.monotonic() + 120
        while not (folder / then[0]).exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        try:
            then[1]()
        except BaseException as fault:  # noqa: BLE001  # of another thread: raised below
            faults.append(fault)

    waiting = threading.Thread(target=wait) if then else None
    if waiting:
        waiting.start()
    program = [sys.executable, SCRIPT, folder, *words]
    output = hosts.smddprun(ranks, program, timeout=240, env=env, options=options)
    if waiting:
        waiting.join()
    if faults:
        raise faults[0]
    lines = (folder / "results").read_text().splitlines()
    return output, {one["slot"]: one for one in map(json.loads, lines)}


def secret_is_shown():
    """Whether the command line of any process has the secret of a job."""
    mark, secrets, lines = b"SMDDP_RENDEZVOUS_SECRET=", set(), []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            settings = (process / "environ").read_bytes().split(b"\0")
            lines.append((process / "cmdline").read_bytes())
        except OSError:
            continue  # it has ended
        secrets |= {one[len(mark) :] for one in settings if one.startswith(mark)}
    assert secrets, "no rank was found"
    return any(secret in line for secret in secrets for line in lines)


def lose_a_host(tmp_path, how):
    """All its processes end at once, or its cable is cut: the others go on, and repeat nothing."""
    with Hosts(3) as hosts:

        def lose():
            assert not secret_is_shown()
            if how == "ends":
                hosts.lose(2)
            else:
                hosts.cut(2)

        words = ["loop", "2#7", "4+7"]  # all wait before step 7, in one small sum after the other
        options = ["--min-np", "1"]
        output, found = train(hosts, tmp_path, words, options, [1, 1, 1], ("2#7", lose))
    assert sorted(found) == [0, 1], output
    assert all(one["once"] and one["traces"] == 1 for one in found.values()), output
    assert [one["sizes"] for one in found.values()] == [[3, 2], [3, 2]], output


def test_a_host_ends(tmp_path):
    """As when a machine loses its power, but for the cable."""
    lose_a_host(tmp_path, "ends")


def test_a_cut_cable(tmp_path):
    """No host says that the connections have ended."""
    lose_a_host(tmp_path, "cut")


def test_hosts_come_and_go(tmp_path):
    """The script lists one host less, and another with two slots."""
    with Hosts(3) as hosts:
        one, other, new = hosts.addresses
        script = tmp_path / "hosts.sh"
        later = f"echo {one}:1; echo {new}:2"
        begin = f"echo {one}:1; echo {other}:1"
        script.write_text(f"#!/bin/sh\nif [ -e {tmp_path}/1#5 ]; then {later}; else {begin}; fi\n")
        script.chmod(0o755)
        options = ["-np", "2", "--min-np", "1", "--host-discovery-script", script]
        output, found = train(hosts, tmp_path, ["fit", "1#5", "2+5", "3+5"], options)
    assert sorted(found) == [0, 2, 3], output
    assert all(one["error"] < 1e-6 for one in found.values()), output
    assert "Could not find the environment variable" not in output
    assert found[0]["sizes"][0] == 2, output
    assert found[0]["sizes"][-1] == 3, output
    assert "rank 1 (slot 1) leaves: its host has no slot for it any more" in output
    for slot, host in ((1, other), (2, new), (3, new)):
        assert f"slot {slot} starts on {host}" in output, output


def test_faults_of_hosts():
    """Of `make elastic`, those that only hosts have, one after the other."""
    plan = {"seed": "hosts", "how": "loop", "cold": True, "patience": 2, "hosts": True}
    outcome = storm.run_one({**plan, "kinds": list(storm_hosts.OF_HOSTS)})
    assert outcome.good(), f"{storm.line_of(0, outcome)}\n{outcome.output[-12000:]}"
    assert len(outcome.seconds) == len(storm_hosts.OF_HOSTS)
    assert outcome.steps > 0
