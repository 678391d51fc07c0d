"""Averages of integers with factors, near the limits of their dtypes."""

import pytest
from bodies import scaled_averages


@pytest.mark.parametrize("ranks", [2, 3])
def test_averages(job, ranks):
    """As of Python's integers: nothing wraps, and nothing is truncated twice."""
    results = job(scaled_averages.averages, ranks).check(ranks)
    assert results[0]["checks"] == 3 * 4 * 4 * 3
