"""send and recv between ranks of one node."""

import pytest
import torch_job


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_random_programs(tmp_path, ranks):
    """Messages of all sizes, in an order of each rank's own, beside collectives."""
    torch_job.run(tmp_path, "ranks_messages", "programs", ranks, seeds=12).check(ranks)


@pytest.mark.parametrize("ranks", [2, 3])
def test_details(tmp_path, ranks):
    """Sources, tags, views, threads, and groups that are left."""
    torch_job.run(tmp_path, "ranks_messages", "details", ranks).check(ranks)


def test_errors(tmp_path):
    """Both ranks are told both sizes, and the job goes on."""
    results = torch_job.run(tmp_path, "ranks_messages", "errors", 3).check(3)
    found = {**results[0]["found"], **results[1]["found"]}
    for side, called in (("long", "(send)"), ("short", "(recv)")):
        kind, text = found[side]
        assert kind == "DistBackendError" and text.endswith(called)
        assert "rank 0 sends 12 bytes to rank 1, which has room for 8" in text
    assert "to_dense" in found["sparse"][1]
    assert found["limit"][0] == "DistBackendError" and "0.2 s" in found["limit"][1]


@pytest.mark.quiet
@pytest.mark.parametrize("how", ["killed", "ended", "limit"])
def test_a_rank_that_does_not_send(tmp_path, how):
    """Those that wait for it, and for those that do, are told of it."""
    job = torch_job.run(tmp_path, "ranks_messages", "lost", 3, how=how, timeout=90)
    assert not job.timed_out, job.output[-4000:]
    assert job.results, job.output[-4000:]  # mpirun may end one of the survivors before it reports
    most = {"killed": 1.5, "ended": 1.5, "limit": 5}[how]
    words = {"killed": "died", "ended": "has ended", "limit": "over its timeout of 3 s"}[how]
    for survivor in [one for rank, one in job.results.items() if rank != 2]:
        assert survivor["kind"] == "DistBackendError", survivor
        assert words in survivor["text"] and "recv 'tag 0 of group" in survivor["text"], survivor
        assert "rank 2" in survivor["text"] or how == "limit", survivor
        assert survivor["seconds"] < most, survivor


@pytest.mark.parametrize("env", [{"SMDDP_NODES": "2"}, {"SMDDP_SINGLE_COPY": "0"}], ids=str)
def test_by_gloo(tmp_path, env):
    """On two nodes, and where ranks do not read each other's memory."""
    torch_job.run(tmp_path, "ranks_messages", "by_gloo", 4, env=env).check(4)
