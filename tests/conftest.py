"""How tests share the machine: several run at a time, but for those that are marked `quiet`."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "multirank"))

import shared  # noqa: E402


def pytest_configure():
    """Before workers start, which take the session from their environment."""
    shared.session()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Those that want the machine for themselves come last, one after the other.

    The longest one comes first: at the end nothing would run beside it.
    """
    items.sort(
        key=lambda item: (item.get_closest_marker("quiet") is not None, item.name != "test_cpp")
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Each test waits until it may begin."""
    with shared.among_others(alone=item.get_closest_marker("quiet") is not None):
        return (yield)
