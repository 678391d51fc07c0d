"""Ranks that disagree or die: everybody hears of it, with both sides, and nothing hangs."""

import pytest
import torch_job


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", ["disagree", "bad_input"])
def test_errors_on_all_ranks(tmp_path, name, ranks):
    """DistBackendError with both sides and the collective's number; the job goes on."""
    torch_job.run(tmp_path, "ranks_failures", name, ranks).check(ranks)


@pytest.mark.quiet
@pytest.mark.parametrize("how", ["sync", "async", "backward"])
def test_a_rank_that_is_killed(tmp_path, how):
    """The others raise within a second, naming the rank. C++ hands on the text only."""
    job = torch_job.run(tmp_path, "ranks_failures", "killed", 3, how=how, timeout=90)
    assert not job.timed_out, job.output[-4000:]
    assert job.returncode != 0
    assert "rank 2 (process" in job.output, job.output[-4000:]
    assert job.results, job.output[-4000:]  # mpirun may end one of the survivors before it reports
    for survivor in job.results.values():
        assert survivor["kind"] == ("RuntimeError" if how == "backward" else "DistBackendError")
        assert "rank 2" in survivor["text"] and "died" in survivor["text"], survivor
        assert "DistBackendError" in survivor["text"] or how != "backward", survivor
        assert survivor["seconds"] < 1, survivor


def test_another_world(tmp_path):
    """The launcher's job is another one than torch's: both are shown, and what to do."""
    results = torch_job.run(tmp_path, "ranks_failures", "another_world", 2).check(2)
    assert results[0]["kind"] == results[1]["kind"] == "DistBackendError"
    assert "torch.distributed has rank 0 of 3" in results[1]["text"]
    assert "the launcher's job has rank 1 of 2" in results[1]["text"]
    assert "smddprun -np 3" in results[1]["text"]
