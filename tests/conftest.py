"""Lets tests of several workers run beside each other, but for those that are marked `alone`."""

import contextlib
import fcntl
import os
import pathlib
import tempfile

import pytest


@contextlib.contextmanager
def _locked(path, how):
    with open(path, "w") as file:
        fcntl.flock(file, how)
        yield


@pytest.fixture(autouse=True)
def _share_the_machine(request):
    """A test that is marked `alone` waits until no other runs, and the others wait for it."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        yield
        return
    alone = request.node.get_closest_marker("alone") is not None
    path = pathlib.Path(tempfile.gettempdir()) / f"smddp_tf_tests_{run}.lock"
    with _locked(path, fcntl.LOCK_EX if alone else fcntl.LOCK_SH):
        yield
