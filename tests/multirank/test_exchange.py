"""Alltoall, reducescatter and the grouped collectives, through mpirun."""

import launcher
import pytest
from bodies import exchange
from conftest import PYTHONS, on_ranks

MPICH = launcher.ROOT / ".venv-mpich/bin/mpirun"


@on_ranks("python", PYTHONS, 2, 3, 4)
def test_alltoall_and_grouped_allgather(job, python, ranks):
    """With and without splits, gradients, and mistakes of one rank."""
    job(exchange.alltoall_and_grouped_allgather, ranks, python=python).check(ranks)


@on_ranks("python", PYTHONS, 2, 3, 4)
def test_reducescatter_and_grouped_allreduce(job, python, ranks):
    """Ops, dtypes, uneven rows, gradients; what XLA programs can have."""
    job(exchange.reducescatter_and_grouped_allreduce, ranks, python=python).check(ranks)


@pytest.mark.parametrize("nodes", [1, 2])
def test_sets_and_nodes(job, nodes):
    """On process sets, and between nodes."""
    env = {"SMDDP_NODES": str(nodes)}
    job(exchange.sets_and_nodes, 4, env=env).check(4)


def _uneven_between_nodes(job, ranks, nodes, **options):
    env = {"SMDDP_NODES": str(nodes), "SMDDP_TIMEOUT_SECONDS": "30"}
    job(exchange.uneven_between_nodes, ranks, env=env, **options).check(ranks)


@pytest.mark.parametrize(("ranks", "nodes"), [(2, 2), (3, 3), (4, 2)])
def test_uneven_alltoall_between_nodes(job, ranks, nodes):
    """Ranks that have nothing to send, or nothing more, receive all the same."""
    _uneven_between_nodes(job, ranks, nodes)


@pytest.mark.skipif(not MPICH.exists(), reason="no .venv-mpich; `make test` makes it")
def test_uneven_alltoall_under_mpich(job):
    """The same."""
    _uneven_between_nodes(job, 3, 3, launcher=MPICH)


def test_a_wait_between_nodes_names_the_rank(job):
    """Both ranks that came say which one did not."""
    env = {"SMDDP_NODES": "3", "SMDDP_TIMEOUT_SECONDS": "4"}
    result = job(exchange.one_stays_away, 3, env=env)
    assert not result.timed_out, result.output[-4000:]
    for rank in (0, 1):
        assert " s for rank 2 in " in result.results[rank]["error"], result.results[rank]["error"]
