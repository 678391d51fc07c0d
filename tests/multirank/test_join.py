"""join(): ranks that ran out of data, through mpirun."""

import machine_time
import pytest
from bodies import join


@pytest.mark.parametrize("ranks", [2, 4])
def test_uneven_steps(job, ranks):
    """Zeros for who has joined; three rounds; what zeros do not do is an error for all."""
    job(join.uneven_steps, ranks).check(ranks)


def test_a_rank_that_ends_without_joining(job):
    """Who waits in join() is told."""
    start = machine_time.now()
    result = job(join.ends_without_joining, 2)
    assert sorted(result.results) == [0, 1], result.output[-3000:]
    assert machine_time.now() - start < 60


@pytest.mark.parametrize(("ranks", "nodes"), [(3, 2), (4, 2)])
def test_several_nodes(job, ranks, nodes):
    """Sums, averages and barriers are served between nodes, the rest is refused on all ranks."""
    job(join.between_nodes, ranks, env={"SMDDP_NODES": str(nodes)}).check(ranks)


@pytest.mark.parametrize(("ranks", "nodes"), [(2, 0), (4, 0), (4, 2), (4, 4)])
def test_in_threads(job, ranks, nodes):
    """Also when the ranks that said in which order threads' collectives run have joined."""
    job(join.in_threads, ranks, env={"SMDDP_NODES": str(nodes)}).check(ranks)


@pytest.mark.parametrize("nodes", [0, 2])
def test_what_follows_a_join_is_not_served_with_zeros(job, nodes):
    """A rank that leaves join() first can begin the next collective at once."""
    job(join.what_follows_at_once, 4, env={"SMDDP_NODES": str(nodes)}).check(4)


def test_queries_answer_when_they_run(job, python):
    """rank_op() and the like in a function that is traced once, and for process sets."""
    job(join.queries, 3, python=python).check(3)
