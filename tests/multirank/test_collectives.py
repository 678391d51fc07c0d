"""Every collective, through mpirun: dtypes, ops and ways to run, with rank-distinct exact data."""

import pytest
from bodies import collectives
from conftest import PYTHONS, on_ranks


@pytest.mark.every_version
@on_ranks("python", PYTHONS, 2, 3, 4)
def test_allreduce(job, python, ranks):
    """All ops of all dtypes in all ways, and some sizes; scalars and empty tensors too."""
    results = job(collectives.allreduce, ranks, python=python).check(ranks)
    assert len({r["checks"] for r in results.values()}) == 1
    assert results[0]["checks"] > 3 * 8 * 5


@on_ranks("python", PYTHONS, 2, 3)
def test_movement_and_gradients(job, python, ranks):
    """Broadcast, allgather, objects, variables, and the gradient of each collective."""
    job(collectives.movement_and_gradients, ranks, python=python).check(ranks)


@pytest.mark.every_version
@pytest.mark.parametrize(
    ("python", "ranks", "nodes"),
    [("tf2.21", 4, 2), ("tf2.21", 3, 3), ("tf2.21", 3, 2), ("tf2.15", 2, 2)],
    indirect=["python"],
)
def test_between_nodes(job, python, ranks, nodes):
    """The ranks are split into groups that share no memory; MPI carries the bytes."""
    env = {"SMDDP_NODES": str(nodes)}
    results = job(collectives.between_nodes, ranks, env=env, python=python).check(ranks)
    assert all(result["cross_size"] == nodes for result in results.values())
    assert sum(result["local_size"] for result in results.values()) >= ranks
