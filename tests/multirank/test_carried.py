"""Complex numbers, unsigned ones of 32 and 64 bits, and others that the engine does not have."""

import pytest
from bodies import carried
from conftest import PYTHONS, on_ranks


@on_ranks("python", PYTHONS, 2, 3)
def test_movement(job, python, ranks):
    """Each arrives as it is, by every collective that moves."""
    job(carried.movement, ranks, python=python).check(ranks)


@on_ranks("python", PYTHONS, 2, 4)
def test_reductions(job, python, ranks):
    """Sums of complex numbers, sparse ones too, and the gradients of the sums."""
    job(carried.reductions, ranks, python=python).check(ranks)


@on_ranks("python", PYTHONS, 2)
def test_training(job, python, ranks):
    """Complex variables train as in one process."""
    job(carried.training, ranks, python=python).check(ranks)


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_optimizers(keras2_job, nodes):
    """Keras 3 has no complex variables. Between nodes, divided state scatters gradients."""
    keras2_job(carried.optimizers, 2, env={"SMDDP_NODES": nodes}).check(2)


def test_mistakes(job):
    """Both sides' dtypes are named."""
    job(carried.mistakes, 2).check(2)
