"""Process sets come and go, ranks disagree about them or die, and nothing hangs or is left."""

import pytest
from bodies import process_set_changes


@pytest.mark.parametrize("nodes", [1, 2])
def test_added_and_removed(job, nodes):
    """20 times, and nothing is left: memory, mappings, descriptors, threads."""
    job(process_set_changes.added_and_removed, 3, env={"SMDDP_NODES": str(nodes)}).check(3)


def test_ranks_that_disagree(job):
    """About which sets there are, or inside one: an error on all ranks, and the job goes on."""
    results = job(process_set_changes.disagree, 3).check(3)
    for r in (1, 2):
        assert "allreduce 'odd' of process set 1" in results[r]["text"]
        assert "rank 1 has [float32 [1]], rank 2 has [float32 [2]]" in results[r]["text"]


def test_a_set_in_use_is_not_removed(job):
    """All ranks hear of it, and the collective under way ends well."""
    job(process_set_changes.removed_in_use, 3).check(3)


@pytest.mark.quiet
def test_a_member_that_dies(job):
    """Its set hears of it, and so does who waits elsewhere for somebody that waits in the set."""
    result = job(process_set_changes.a_member_dies, 3, timeout=60)
    assert not result.timed_out, result.output[-4000:]
    assert result.returncode != 0
    # mpirun may end a survivor before its script reports, but the sentence is always there.
    assert "rank 2 (process" in result.output, result.output[-4000:]
    assert "'in_the_set' of process set 1" in result.output, result.output[-4000:]
    for survivor in result.results.values():
        assert survivor["error"] == "UnknownError"
        assert survivor["seconds"] < 2
        assert "rank 2" in survivor["text"]


def test_sets_given_to_init(job):
    """They are there at once; ranks that give others are refused, all of them."""
    results = job(process_set_changes.gives_other_sets, 3, timeout=60).check(3)
    assert [results[r]["sum"] for r in range(3)] == [3.0] * 3
    results = job(process_set_changes.gives_sets, 3, timeout=60).check(3)
    assert [results[r]["sum"] for r in range(3)] == [2.0, 1.0, 2.0]


def test_a_part_of_the_ranks_is_the_job(job):
    """init(comm=...): ranks are renumbered; the rest is alone, or another job."""
    job(process_set_changes.a_part_is_the_job, 3, timeout=60).check(3)
    job(process_set_changes.two_parts_are_jobs, 4, timeout=60).check(4)
    job(process_set_changes.a_communicator_is_the_job, 3, timeout=60).check(3)
