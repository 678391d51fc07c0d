"""Ranks on hosts that are made of namespaces: by smddprun and by torchrun; elastic jobs."""

import json
import subprocess
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
EVERY = torch_job.EVERY
# These hosts' names resolve to nothing, and gloo has to do without, and without smddprun's help.
WITHOUT_HELP = ["-x", "GLOO_SOCKET_IFNAME="]


@pytest.fixture(autouse=True)
def _needs_hosts():
    torch_job.need_torch()
    reason = why_not()
    if reason:
        pytest.skip(reason)


@pytest.mark.thorough
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
        words = [torch_job.PYTHON, *torch_job.launcher.script(body, tmp_path)]
        hosts.smddprun(ranks, words, timeout=180, env=ENV, options=WITHOUT_HELP)
    assert len(list(tmp_path.glob("rank*.json"))) == sum(ranks)


def _torchrun(hosts, tmp_path, ranks, words, *body, **arguments) -> list:
    """Starts a torchrun on each host, whose ranks call the body; they write to host0.log and so on.

    Returns:
      The processes, by host.
    """
    script = torch_job.launcher.script(torch_job.Body(*body, arguments), tmp_path)
    started = []
    for host, (own, count) in enumerate(zip(hosts.addresses, ranks, strict=True)):
        there = {"first": hosts.addresses[0], "own": own, "host": host, "is_first": host == 0}
        command = [torch_job.PYTHON, "-m", "torch.distributed.run", "--nnodes", len(ranks)]
        command += ["--nproc-per-node", count, *(word.format(**there) for word in words), *script]
        with open(tmp_path / f"host{host}.log", "w") as log:
            output = {"stdout": log, "stderr": subprocess.STDOUT}
            started.append(hosts.start(host, [str(word) for word in command], env=ENV, **output))
    return started


def _logs(tmp_path) -> str:
    return "\n".join(path.read_text()[-4000:] for path in sorted(tmp_path.glob("host*.log")))


def _check_end(tmp_path, process) -> None:
    """It ends well, in time."""
    try:
        code = process.wait(120)
    except subprocess.TimeoutExpired:
        code = "it still ran after 120 s"
    assert code == 0, f"{code}\n{_logs(tmp_path)}"


# How torchruns find each other: with node ranks, and by a rendezvous. Hosts' names resolve to
# nothing, so each is told whether it has the store, and its address.
STATIC = ["--node-rank", "{host}", "--master-addr", "{first}", "--master-port", "29500"]
RENDEZVOUS = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "{first}:29400"]
RENDEZVOUS += ["--rdzv-conf", "is_host={is_first},last_call_timeout=3", "--local-addr", "{own}"]


@pytest.mark.parametrize(
    ("ranks", "words", "module", "name", "arguments"),
    [
        ([1, 2], RENDEZVOUS, "ranks_collectives", "together", {"names": EVERY}),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in (
                ([2, 1], STATIC, "ranks_collectives", "together", {"names": EVERY}),
                ([2, 1], RENDEZVOUS, "ranks_collectives", "between_two", {}),
                ([2, 2], STATIC, "ranks_groups", "overlapping", {}),
                ([1, 1], RENDEZVOUS, "ranks_training", "data_parallel", {}),
            )
        ),
    ],
    ids=["rendezvous", "collectives", "send and recv", "overlapping groups", "DDP"],
)
def test_torchrun(tmp_path, ranks, words, module, name, arguments):
    """A torchrun on each host, and no MPI."""
    with Hosts(2) as hosts:
        for one in _torchrun(hosts, tmp_path, ranks, words, module, name, **arguments):
            _check_end(tmp_path, one)
    assert len(list(tmp_path.glob("rank*.json"))) == sum(ranks)


@pytest.mark.parametrize("how", ["sync", pytest.param("async", marks=pytest.mark.thorough)])
def test_torchrun_loses_a_rank(tmp_path, how):
    """The ranks of the other host raise within a second, and name it; their torchrun waits."""
    with Hosts(2) as hosts:
        _torchrun(hosts, tmp_path, [2, 1], STATIC, "ranks_failures", "killed", how=how)
        deadline, found = time.monotonic() + 60, []
        while len(found) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
            found = [json.loads(path.read_text()) for path in tmp_path.glob("rank*.json")]
    assert len(found) == 2, _logs(tmp_path)
    for survivor in found:
        assert survivor["kind"] == "DistBackendError", survivor
        assert "rank 2" in survivor["text"], survivor
        assert survivor["seconds"] < 1, survivor


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["lose", "cut"])
def test_torchrun_loses_a_host(tmp_path, how):
    """Torchrun starts the ranks of the other again, and they are all."""
    words = ["--nnodes", "1:2", "--max-restarts", "1", *RENDEZVOUS]
    body = ("ranks_torchrun", "loses_a_host")
    with Hosts(2) as hosts:
        first, _ = _torchrun(hosts, tmp_path, [2, 1], words, *body, folder=str(tmp_path))
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("attempt0.*"))) < 3 and time.monotonic() < deadline:
            time.sleep(0.1)
        getattr(hosts, how)(1)
        _check_end(tmp_path, first)
    assert "was lost" in (tmp_path / "host0.log").read_text(), _logs(tmp_path)
    found = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert found == 2 * [{"sums": [3, 6, 12], "size": 2}], found


@pytest.mark.thorough
def test_lightning():
    """prepare_data once on each host, equal weights, and those of one process, bit for bit."""
    test_torch_lightning.need_lightning()
    with Hosts(2) as hosts:
        words = [torch_job.PYTHON, str(test_torch_lightning.SCRIPT)]
        output = hosts.smddprun([1, 1], words, timeout=180, env=ENV, options=["--alias"])
    test_torch_lightning.check(output, local_ranks=[0, 0])


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["lose", "cut"])
def test_an_elastic_job(tmp_path, how):
    """A host ends, or its cable is cut; the others end with the weights of one process."""
    script = ROOT / "tests" / "scripts" / "torch_elastic.py"
    words = [torch_job.PYTHON, script, tmp_path, "2#7", "4+7"]  # all wait before step 7
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
