"""Ranks write their slots through their caches or past them: the sums are the same."""

import platform

import pytest
from bodies import staging

# Elsewhere there are no stores past the cache, and all is cached.
STREAMING = "streaming" if platform.machine() == "x86_64" else "cached"


@pytest.mark.parametrize(("way", "writes"), [("cached", "cached"), ("streaming", STREAMING)])
def test_forced(job, way, writes):
    """As the variable says."""
    results = job(staging.sums, 2, env={"SMDDP_STAGING": way}).check(2)
    assert [one["writes"] for one in results.values()] == [writes, writes]


def test_measured(job):
    """Each rank has measured what it reads from each of the others, in both ways."""
    results = job(staging.sums, 3).check(3)
    for rank, one in results.items():
        assert set(one["read_gbs"]) == {str(peer) for peer in range(3) if peer != rank}
        for speeds in one["read_gbs"].values():
            assert speeds["cached"] > 0
            assert STREAMING == "cached" or speeds["streaming"] > 0
