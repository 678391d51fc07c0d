"""run() on hosts that share no loopback and no /dev/shm: ranks find the process that called it."""

import json
import pathlib

import pytest
from namespaces import Hosts, why_not

HERE = pathlib.Path(__file__).resolve().parent


def test_run():
    """Results and exceptions of remote ranks arrive, by a named network and by any."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with Hosts(2) as hosts:
        env = {"PYTHONPATH": str(HERE.parents[1])}
        output = hosts.script([1, 2], HERE / "body_run.py", timeout=150, env=env)
        assert hosts.left_behind() == []
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    places = [[0, "host1"], [1, "host2"], [2, "host2"]]
    assert rows[:2] == [{"places": places, "same": True, "nic": nic} for nic in ("eth0", None)]
    assert rows[2]["rank"] in (1, 2)
    assert rows[2]["cause"] == "KeyError('of host2')"
