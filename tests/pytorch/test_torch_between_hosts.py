"""Ranks on hosts that are made of namespaces: collectives, DDP, Lightning's guide, elastic jobs."""

import json
import sys
import threading
import time

import pytest
import test_torch_lightning
import torch_job

ROOT = torch_job.launcher.ROOT
sys.path.insert(0, str(ROOT / "tests" / "hosts"))

from namespaces import Hosts, why_not  # noqa: E402

ENV = torch_job.launcher.environment(torch_job.ENVIRONMENT)
# These hosts' names resolve to nothing, and gloo has to do without, and without smddprun's help.
WITHOUT_HELP = ["-x", "GLOO_SOCKET_IFNAME="]


@pytest.fixture(autouse=True)
def _needs_hosts():
    torch_job.need_torch()
    reason = why_not()
    if reason:
        pytest.skip(reason)


@pytest.mark.parametrize(
    ("ranks", "module", "name", "arguments"),
    [
        ([2, 1], "ranks_collectives", "together", {"names": ["reductions", "moves", "exchanges"]}),
        ([2, 1], "ranks_collectives", "between_two", {}),
        ([1, 2], "ranks_collectives", "groups", {}),
        ([2, 2], "ranks_groups", "overlapping", {}),
        ([1, 1], "ranks_training", "data_parallel", {}),
        ([1, 1], "ranks_horovod", "training", {}),
    ],
    ids=["collectives", "send and recv", "groups", "overlapping groups", "DDP", "Horovod's names"],
)
def test_two_hosts(tmp_path, ranks, module, name, arguments):
    """What is tested on one host."""
    body = torch_job.Body(module, name, arguments)
    with Hosts(2) as hosts:
        words = [sys.executable, *torch_job.launcher.script(body, tmp_path)]
        hosts.smddprun(ranks, words, timeout=180, env=ENV, options=WITHOUT_HELP)
    assert len(list(tmp_path.glob("rank*.json"))) == sum(ranks)


def test_lightning():
    """prepare_data once on each host, equal weights, and those of one process, bit for bit."""
    test_torch_lightning.need_lightning()
    with Hosts(2) as hosts:
        words = [sys.executable, str(test_torch_lightning.SCRIPT)]
        output = hosts.smddprun([1, 1], words, timeout=180, env=ENV, options=["--alias"])
    test_torch_lightning.check(output, local_ranks=[0, 0])


@pytest.mark.parametrize("how", ["lose", "cut"])
def test_an_elastic_job(tmp_path, how):
    """A host ends, or its cable is cut; the others end with the weights of one process."""
    script = ROOT / "tests" / "scripts" / "torch_elastic.py"
    words = [sys.executable, script, tmp_path, "2#7", "4+7"]  # all wait before step 7
    with Hosts(3) as hosts:

        def fault():
            deadline = time.monotonic() + 120
            while not (tmp_path / "2#7").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            getattr(hosts, how)(2)

        waiting = threading.Thread(target=fault)
        waiting.start()
        options = ["--min-np", "1"]
        output = hosts.smddprun([1, 1, 1], words, timeout=180, env=ENV, options=options)
        waiting.join()
    found = [json.loads(line) for line in (tmp_path / "results").read_text().splitlines()]
    assert sorted(one["slot"] for one in found) == [0, 1], output
    assert all(one["sizes"] == [3, 2] and one["error"] < 1e-14 for one in found), (found, output)
