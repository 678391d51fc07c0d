"""Reductions of tf.IndexedSlices and their gradients, through mpirun."""

from bodies import slices
from conftest import PYTHONS, on_ranks


@on_ranks("python", PYTHONS, 2, 3)
def test_averages_of_integers(job, python, ranks):
    """They are floats, as in Horovod."""
    job(slices.averages_of_integers, ranks, python=python).check(ranks)


@on_ranks("python", PYTHONS, 2, 3)
def test_second_gradients(job, python, ranks):
    """A penalty on the reduced gradient of a table."""
    job(slices.second_gradients, ranks, python=python).check(ranks)


@on_ranks("python", PYTHONS, 2, 3)
def test_unknown_dimensions(job, python, ranks):
    """Gradients of tables whose shape a graph does not know."""
    job(slices.unknown_dimensions, ranks, python=python).check(ranks)
