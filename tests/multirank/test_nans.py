"""NaNs of one rank reach all others."""

from bodies import nans


def test_minima_and_maxima(job):
    """As numpy.minimum and maximum: a NaN on any rank is every rank's result."""
    results = job(nans.minima_and_maxima, 3).check(3)
    assert results[0]["checks"] > 3 * 3 * 12 * 2 * 6


def test_minima_and_maxima_between_nodes(job):
    """The same, with a node of two ranks and one of one."""
    job(nans.minima_and_maxima, 3, env={"SMDDP_NODES": "2"}).check(3)
