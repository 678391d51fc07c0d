"""Sessions of TF1 graphs: what they run is what a step, or the script, has asked for."""

import pytest
from bodies import sessions


@pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "reference"])
def test_variables_are_broadcast_by_what_the_session_runs(job, python, use_resource):
    """The graph holds the assignments, and a session runs nothing that it is not given."""
    job(sessions.variables(use_resource), 3, python=python, timeout=60).check(3)


def test_the_gradient_of_a_broadcast_alone(job, python):
    """All ranks reduce it, also those whose own part of it is zero."""
    job(sessions.gradient_of_broadcast, 3, python=python, timeout=60).check(3)


def test_objects(job, python):
    """They are sent at once, and the script's graph stays as it is."""
    job(sessions.objects, 3, python=python, timeout=60).check(3)
