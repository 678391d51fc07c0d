"""Alltoall, reducescatter and the grouped collectives, through mpirun."""

import pytest
from bodies import exchange
from conftest import PYTHONS, on_ranks


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
