"""Nobody reads what a rank writes to stderr: it hears of failures all the same, and ends."""

import re

import pytest
from bodies import stuck_output


@pytest.mark.parametrize(
    ("how", "words"),
    [("leaves", r"rank 1 \(process"), ("stands still", r"rank 0 waited [34]\.\d s for rank 1 in")],
)
def test_hears_of_a_failure(job, how, words):
    """Before anything is written: a warning about a stall, or what failed."""
    env = {"SMDDP_STALL_WARNING_SECONDS": "1", "SMDDP_TIMEOUT_SECONDS": "3"}
    result = job(stuck_output.hears_of_a_failure(how), 2, env=env, timeout=40)
    assert 0 in result.results, result.output[-4000:]
    told = result.results[0]
    assert told["seconds"] is not None
    assert told["seconds"] < 5.5, told
    assert re.search(words, told["text"]), told


def test_is_ended_by_sigterm(job):
    """Its last words are stuck, but not its end."""
    result = job(stuck_output.is_ended_by_sigterm, 2, timeout=40)
    assert 1 in result.results, result.output[-4000:]
    assert result.results[1]["seconds"] < 5


def test_logs_and_goes_on(job):
    """A thousandth of a second each, but for the first; what was lost is said."""
    told = job(stuck_output.logs_and_goes_on, 1, timeout=40).check(1)[0]
    assert told["seconds"] < 5
    assert told["lost"]
    assert 5 <= told["whole"] <= 15  # as many as a mebibyte has room for
