"""Collectives that TensorFlow vectorizes, through mpirun."""

from bodies import vectorized
from conftest import PYTHONS, on_ranks


@on_ranks("python", PYTHONS, 2, 3)
def test_vectorized_map_and_jacobian(job, python, ranks):
    """Iterations meet the same iteration of the other ranks; the tape's gradient is refused."""
    job(vectorized.maps_and_jacobians, ranks, python=python).check(ranks)


@on_ranks("python", PYTHONS, 2, 3)
def test_between_collectives(job, python, ranks):
    body = vectorized.between_collectives()
    job(body, ranks, env={"SMDDP_TIMEOUT_SECONDS": "30"}, python=python).check(ranks)


@on_ranks("python", PYTHONS, 2, 3)
def test_branches(job, python, ranks):
    """Rows that take different branches of a cond, or all of them one."""
    job(vectorized.branches, ranks, python=python, timeout=90).check(ranks)
