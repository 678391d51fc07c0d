"""Ranks that come late or never: limits on waiting, and what an abort does."""

import pytest
import torch_job

MODULE = "ranks_timeouts"
# What the script gives comes before it.
LONG = {"SMDDP_TIMEOUT_SECONDS": "100"}


@pytest.mark.quiet
@pytest.mark.parametrize(
    ("how", "nodes"),
    [
        ("default", "3"),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in (
                ("default", ""),
                ("new_group", ""),
                ("new_group", "2"),
                ("set_timeout", ""),
                ("options", ""),
                ("options", "2"),
            )
        ),
    ],
)
def test_limit(tmp_path, how, nodes):
    """The limit of a group or of a call: an error on all ranks that names the late one."""
    env = {**LONG, "SMDDP_NODES": nodes} if nodes else LONG
    results = torch_job.torchrun(tmp_path, MODULE, "limited", 3, env=env, how=how)
    assert len(results) == 3
    for rank, result in enumerate(results):
        assert result["kind"] == "DistBackendError", result
        assert "for rank 2 in" in result["text"], result
        assert "its timeout of 1 s;" in result["text"], result
        assert "of group" in result["text"], result
        assert result["seconds"] < 2.4 or rank == 2, result


@pytest.mark.quiet
@pytest.mark.parametrize("ranks", [2, 3])
def test_limit_of_a_wait(tmp_path, ranks):
    """work.wait(timeout) names whom it waits for, and the collective ends well."""
    results = torch_job.run(tmp_path, MODULE, "wait_limited", ranks).check(ranks)
    for rank in range(ranks - 1):
        result = results[rank]
        assert result["kind"] == "DistBackendError", result
        assert f"waits for rank {ranks - 1} (all_reduce" in result["text"], result
        assert 0.25 < result["seconds"] < 1.5, result
    assert all(result["sums"] == 3 * [ranks] for result in results.values())


@pytest.mark.quiet
@pytest.mark.parametrize("nodes", ["", "2"])
@pytest.mark.parametrize("how", ["call", "thread"])
@pytest.mark.parametrize("launch", ["mpirun", pytest.param("torchrun", marks=pytest.mark.thorough)])
def test_abort(tmp_path, how, nodes, launch):
    """All that wait raise within a second; then all ranks begin anew."""
    env = {"SMDDP_NODES": nodes} if nodes else {}
    arguments = {"how": how, "folder": str(tmp_path)}
    if launch == "mpirun":
        results = torch_job.run(tmp_path, MODULE, "aborted", 3, env=env, **arguments).check(3)
    else:
        results = dict(
            enumerate(torch_job.torchrun(tmp_path, MODULE, "aborted", 3, env=env, **arguments))
        )
    assert len(results) == 3
    for rank, result in results.items():
        assert result["again"]
        if rank == (2 if how == "call" else 0):
            continue
        assert result["kind"] == "DistBackendError", result
        assert "rank 2 aborted group 0" in result["text"], result
        assert result["seconds"] < 1, result


@pytest.mark.quiet
@pytest.mark.thorough
def test_monitored_barrier(tmp_path):
    """The group's method: the first rank that is missing or all, and a job that goes on."""
    results = torch_job.run(tmp_path, MODULE, "monitored", 3).check(3)
    for result in results.values():
        texts = [one["text"] for one in result["results"]]
        assert all(one["kind"] == "DistBackendError" for one in result["results"]), result
        for text, who in zip(texts, ("rank 2 did", "ranks 1, 2 did", "rank 0 did"), strict=False):
            assert who in text, result
    third = [result["results"][2] for result in results.values()]
    assert all("did not come within 1 s" in one["text"] for one in third), third


@pytest.mark.quiet
@pytest.mark.thorough
def test_barrier_names_who_is_missing(tmp_path):
    """dist.barrier(), in whose place PyTorch's function cannot be used."""
    results = torch_job.torchrun(tmp_path, MODULE, "barrier_names", 3)
    assert len(results) == 3
    for result in results:
        assert result["kind"] == "DistBackendError"
        assert "for ranks 1, 2 in barrier" in result["text"], result


@pytest.mark.parametrize("nodes", ["", "3"])
def test_again_before_others_know(tmp_path, nodes):
    """A new world forms although the failure of the old one is news to some of its ranks."""
    env = {**LONG, "SMDDP_NODES": nodes} if nodes else LONG
    body = {"env": env, "folder": str(tmp_path)}
    torch_job.run(tmp_path, MODULE, "again_before_others_know", 3, **body).check(3)
