"""Ctrl-C to one rank: its wait for the others ends, and they are told why."""

from bodies import interrupts


def test_end_their_waits(job):
    """KeyboardInterrupt within a second, wherever the rank waits."""
    results = job(interrupts.end_their_waits, 3, timeout=90).check(3)
    assert len(results[1]["seconds"]) == 5
    assert max(results[1]["seconds"].values()) < 1, results[1]


def test_leave_own_handlers_alone(job):
    """As do interrupts of a rank that waits for nobody."""
    results = job(interrupts.leave_own_handlers_alone, 2, timeout=60).check(2)
    assert results[1] == {"seen": 1, "interrupted": True}
