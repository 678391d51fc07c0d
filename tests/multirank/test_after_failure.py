"""After a failure: every rank hears the cause in seconds, nothing is OK any more, nothing hangs."""

import concurrent.futures
import re

import launcher
import pytest
from bodies import after_failure, after_failure_in_fit


@pytest.fixture
def run_both(tmp_path):
    """On one node and, at the same time, on two: most of it is waiting. Returns both jobs."""

    def run(body, ranks, env):
        def on(nodes):
            folder = tmp_path / nodes
            folder.mkdir()
            given = {**env, "SMDDP_NODES": nodes}
            return launcher.run_ranks(body, ranks, folder, env=given, timeout=200)

        launcher.warm_python()  # before two threads ask for it
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return list(pool.map(on, ["0", "2"]))

    return run


def test_a_failure_in_a_process_set(job):
    """A rank that is not in the set, and waits for one that is, hears of it in a second."""
    env = {"SMDDP_NODES": "2", "SMDDP_TIMEOUT_SECONDS": "20"}
    result = job(after_failure.fails_in_a_set, 3, env=env, timeout=200)
    assert not result.timed_out, result.output[-4000:]
    assert sorted(result.results) == [0, 1, 2], result.output[-4000:]
    for rank in (0, 1):
        survivor = result.results[rank]
        assert "rank 2, on another node, no longer takes part" in survivor["text"], survivor
        assert survivor["again"] == survivor["text"]
        assert survivor["seconds"] < 4, survivor


@pytest.mark.quiet
def test_every_rank_hears_the_cause(run_both):
    """Between nodes too, and one that is in no collective; no later operation succeeds."""
    env = {"SMDDP_TIMEOUT_SECONDS": "5"}  # four ranks on two cores have started 2 s apart
    for result in run_both(after_failure.hears_the_cause, 4, env):
        assert not result.timed_out, result.output[-4000:]
        assert sorted(result.results) == [0, 1, 2, 3], result.output[-4000:]
        for one in result.results.values():
            assert len(one["texts"]) == 3
            assert len(set(one["texts"])) == 1, one
            # Two ranks may notice at the same time; those of the other node leave it to them.
            assert re.search(r"waited [5-9]\.\d s for rank 3 ", one["texts"][0]), one
            assert one["seconds"] < 1, one


@pytest.mark.parametrize(("end", "fails"), [("shutdown", True), ("died", False)])
def test_held_buckets(job, end, fails):
    """The step ends when its own operations do, though a bucket of it could not be handed on."""
    body = after_failure.held_buckets(end, fails)
    result = job(body, 2, env={"SMDDP_TIMEOUT_SECONDS": "5"}, timeout=200)
    assert 0 in result.results, result.output[-4000:]
    assert result.results[0]["text"], result.results
    assert result.results[0]["seconds"] < 10, result.results
    assert result.returncode != 0


def test_held_buckets_and_shutdown(job):
    """shutdown() while a step is under way ends the step."""
    results = job(after_failure.held_buckets_and_shutdown, 2, timeout=200).check(2)
    assert all(one["text"] and one["seconds"] < 8 for one in results.values()), results


def test_init_after_a_failure(run_both):
    """It works if every rank comes again."""
    env = {"SMDDP_TIMEOUT_SECONDS": "5"}
    for result in run_both(after_failure.init_again, 2, env):
        assert not result.timed_out, result.output[-4000:]
        assert [result.results[r]["text"] for r in (0, 1)] == ["2.0", "2.0"], result.output[-4000:]
        assert all(one["left"] < 1 for one in result.results.values()), result.results


def test_init_after_a_failure_alone(run_both):
    """It says in time that the job must be restarted, now and when it is called again."""
    env = {"SMDDP_TIMEOUT_SECONDS": "5"}
    for result in run_both(after_failure.init_again_alone, 2, env):
        assert not result.timed_out, result.output[-4000:]
        assert "restart" in result.results[0]["text"], result.output[-4000:]
        assert result.results[0]["seconds"] < 15
        assert all(one["left"] < 1 for one in result.results.values()), result.results


def test_shutdown_does_not_wait_for_a_rank_that_failed(run_both):
    """A rank in good order leaves while another, which failed, goes on by itself."""
    env = {"SMDDP_TIMEOUT_SECONDS": "5"}
    for result in run_both(after_failure.shuts_down_beside_a_failure, 4, env):
        assert not result.timed_out, result.output[-4000:]
        assert sorted(result.results) == [1, 2, 3], result.output[-4000:]
        assert all(4 < one["seconds"] < 15 for one in result.results.values()), result.results
        assert "will not wait for the other ranks to end" in result.output, result.output[-4000:]


def test_shutdown_waits_for_a_rank_that_works(job):
    """However long: SMDDP_TIMEOUT_SECONDS limits collectives, not an evaluation on one rank."""
    env = {"SMDDP_NODES": "2", "SMDDP_TIMEOUT_SECONDS": "5"}
    result = job(after_failure.shuts_down_beside_work, 3, env=env, timeout=200)
    results = result.check(3)
    assert results[0]["seconds"] < 2
    assert all(5 < results[r]["seconds"] < 12 for r in (1, 2)), results
    assert "waits for the other ranks to end, since 5 s" in result.output, result.output[-4000:]


def told(result, *words):
    """Both ranks failed within seconds, and what they said names both operations."""
    assert not result.timed_out, result.output[-4000:]
    assert sorted(result.results) == [0, 1], result.output[-4000:]
    for one in result.results.values():
        assert one["seconds"] < 5, one  # 1.2 s on an idle machine
        assert "neither will come" in one["text"], one
        for word in words:
            assert word in one["text"], one


def test_an_exception_that_one_rank_caught(job):
    """It goes on with other collectives than the others: an error on all that names both."""
    result = job(after_failure.catches_an_exception, 2, timeout=200)
    told(result, "gradient bucket 0 of", "(step 4)", "'accuracy'")


@pytest.mark.parametrize("case", ["uneven", "nan"])
def test_fit_that_ends_on_one_rank(keras3_job, case):
    """One rank averages its metrics, the other its gradients: both are told what the other does."""
    body = after_failure_in_fit.ends_on_one_rank(case)
    told(keras3_job(body, 2, timeout=200), "gradient bucket 0 of", "allreduce 'metric")


def test_a_rank_that_is_only_slow(job):
    """It comes after a while: no error."""
    job(after_failure.is_only_slow, 2, timeout=200).check(2)
