"""new_group() of some of the ranks: by the core, made by its members alone."""

import pytest
import torch_job

MODULE = "ranks_groups"


@pytest.mark.parametrize(
    ("ranks", "nodes", "launch"),
    [
        (2, "", "mpirun"),
        (3, "", "mpirun"),
        (4, "2", "mpirun"),
        pytest.param(4, "", "torchrun", marks=pytest.mark.thorough),
    ],
)
def test_overlapping(tmp_path, ranks, nodes, launch):
    """All collectives in groups that share ranks, in a node and between nodes."""
    env = {"SMDDP_NODES": nodes} if nodes else {}
    if launch == "mpirun":
        results = torch_job.run(tmp_path, MODULE, "overlapping", ranks, env=env).check(ranks)
        results = list(results.values())
    else:
        results = torch_job.torchrun(tmp_path, MODULE, "overlapping", ranks, env=env)
    assert len(results) == ranks
    for result in results:  # where two ranks are all, one of the lists is the world
        assert result["sets"] <= result["own"] + 1, result


def test_made_again(tmp_path):
    """Groups come and go without more memory; process sets of the same ranks are others."""
    results = torch_job.run(tmp_path, MODULE, "made_again", 3).check(3)
    for rank in (0, 2):
        assert results[rank]["counts"] == [2, 2, 2, 3, 4], results
    assert results[1]["counts"] == 5 * [1], results


@pytest.mark.parametrize("name", ["local", "not_sorted"])
def test_orders(tmp_path, name):
    """Groups that others do not hear of, and ranks that are not in ascending order."""
    torch_job.run(tmp_path, MODULE, name, 4).check(4)


@pytest.mark.quiet
@pytest.mark.parametrize("nodes", ["", "3"])
@pytest.mark.parametrize(
    ("how", "texts"),
    [
        ("late", ["rank 0 waited 1 s", "group of ranks [0, 2]", "its timeout"]),
        ("other", ["Mismatched groups", "[0, 2]", "[1, 2]"]),
    ],
)
@pytest.mark.thorough
def test_a_member_that_does_not_come(tmp_path, how, texts, nodes):
    """All ranks hear of it, whether they wait in new_group() or elsewhere."""
    env = {"SMDDP_NODES": nodes} if nodes else {}
    results = torch_job.torchrun(tmp_path, MODULE, "fails", 3, env=env, how=how)
    assert len(results) == 3
    for result in results:
        assert result["kind"] == "DistBackendError", result
        assert all(text in result["text"] for text in texts), result
        assert result["seconds"] < 3, result
    if how == "late":
        assert "without ranks [2]" in results[0]["text"]


@pytest.mark.quiet
def test_going_on(tmp_path):
    """Torchrun's store keeps what the failed group has left; the next one is not misled by it."""
    results = torch_job.torchrun(tmp_path, MODULE, "goes_on", 3)
    assert [result["kind"] for result in results] == 3 * ["DistBackendError"]


@pytest.mark.quiet
@pytest.mark.thorough
def test_a_member_that_has_ended(tmp_path):
    """A rank of this machine that waits for one that has left is told soon."""
    result = torch_job.torchrun(tmp_path, MODULE, "fails", 3, how="left")[0]
    assert result["kind"] == "DistBackendError", result
    assert "rank 2 (process" in result["text"], result
    assert "has ended or called shutdown() while rank 0" in result["text"], result
    assert result["seconds"] < 3, result


@pytest.mark.quiet
def test_a_member_that_is_killed(tmp_path):
    """The one that waits in new_group() raises within a second, and names it."""
    job = torch_job.run(tmp_path, MODULE, "fails", 3, how="killed", timeout=90)
    assert not job.timed_out, job.output[-4000:]
    assert job.results, job.output[-4000:]  # mpirun may end one of the survivors before it reports
    for survivor in job.results.values():
        assert survivor["kind"] == "DistBackendError", survivor
        assert "rank 2" in survivor["text"] and "died" in survivor["text"], survivor
        assert survivor["seconds"] < 1.5, survivor


@pytest.mark.quiet
@pytest.mark.parametrize("where", ["init", "new_group"])
@pytest.mark.thorough
def test_an_interrupt(tmp_path, where):
    """Python's exception on the rank that was interrupted; the one it waited for is told."""
    results = torch_job.torchrun(tmp_path, MODULE, "interrupted", 3, where=where)
    assert results[0]["kind"] == "KeyboardInterrupt", results
    assert results[0]["seconds"] < 2, results
    assert "rank 0 was interrupted while it waited for others" in results[2]["text"], results
    assert results[2]["seconds"] < 2, results
