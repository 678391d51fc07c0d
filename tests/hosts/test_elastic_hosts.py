"""Elastic jobs on several hosts: the one fault that takes all of what they have."""

import pytest
from elastic_hosts import lose_a_host
from namespaces import why_not


def test_a_host_is_cut_off(tmp_path):
    """The others go on without it, and repeat nothing."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    lose_a_host(tmp_path, "cut")
