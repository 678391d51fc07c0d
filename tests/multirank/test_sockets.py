"""Ranks of several sockets, emulated: each socket reduces first, and the sums are the same."""

import pytest
from bodies import staging


@pytest.mark.parametrize(
    ("sockets", "groups", "taken"), [(2, [[0, 1], [2, 3]], True), (1, [[0, 1, 2, 3]], False)]
)
def test_emulated(job, sockets, groups, taken):
    """Long sums go by socket where there are said to be two of two ranks; short ones never do."""
    env = {"SMDDP_SOCKETS": str(sockets), "SMDDP_LOG_LEVEL": "debug"}
    result = job(staging.sums, 4, env=env)
    results = result.check(4)
    assert [one["sockets"] for one in results.values()] == [groups] * 4
    assert ("sockets: taken" in result.output) == taken
    assert "oneshot: taken" in result.output
