"""How tests share the machine, which of them `make test` leaves to `make test-all`, and coverage.

Several run at a time, but for those that are marked `quiet`. Many run on several TensorFlows or
Kerases; with --short each of these takes one of them, and those marked `thorough` are left out.
With --cov the summary says how much of the package ran, in the ranks' processes too.
"""

import json
import pathlib
import re
import sys
import zlib

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "multirank"))

import shared  # noqa: E402


def pytest_addoption(parser):
    """--short, as `make test` has it."""
    parser.addoption(
        "--short",
        action="store_true",
        help="leave out tests marked thorough, and run the others on one of their TensorFlows or "
        "Kerases, which a test's name chooses; those marked every_version run on all",
    )


def pytest_configure():
    """Before workers start, which take the session from their environment."""
    shared.session()


_VERSIONS = re.compile(r"tf2\.\d+|keras[23]|tf_keras")  # as the fixtures of multirank name them


def _version(item) -> str:
    """The TensorFlow or Keras that an item is for; "" if there are not several."""
    return next(
        (
            value
            for value in getattr(getattr(item, "callspec", None), "params", {}).values()
            if isinstance(value, str) and _VERSIONS.fullmatch(value)
        ),
        "",
    )


def _left_out(items) -> set:
    """What --short leaves out: a hash of a test's name chooses its version, so all get some."""
    versions: dict = {}  # of each test
    for item in items:
        if _version(item) and item.get_closest_marker("every_version") is None:
            of = versions.setdefault(item.nodeid.partition("[")[0], {})
            of.setdefault(_version(item), []).append(item)
    left_out = {item for item in items if item.get_closest_marker("thorough") is not None}
    for name, of in versions.items():
        chosen = sorted(of)[zlib.crc32(name.encode()) % len(of)]
        left_out.update(item for version in of if version != chosen for item in of[version])
    return left_out


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Those that want the machine for themselves come last, one after the other."""
    if config.getoption("--short"):
        left_out = _left_out(items)
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: item.get_closest_marker("quiet") is not None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Each test waits until it may begin."""
    with shared.among_others(alone=item.get_closest_marker("quiet") is not None):
        return (yield)


WELL_COVERED = 80  # percent, of lines and of branches


def pytest_terminal_summary(terminalreporter, config):
    """With --cov-report=json: what ran of the package's lines and branches, and what did not."""
    wanted = getattr(config.option, "cov_report", None) or {}
    if "json" not in wanted or not pathlib.Path(wanted["json"]).exists():
        return
    measured = json.loads(pathlib.Path(wanted["json"]).read_text())
    terminalreporter.section("coverage of smddp_tf")

    def both(summary) -> tuple:
        return summary["percent_statements_covered"], summary["percent_branches_covered"]

    for name, file in sorted(measured["files"].items()):
        if min(both(file["summary"])) < WELL_COVERED:
            lines, branches = both(file["summary"])
            terminalreporter.write_line(f"{lines:4.0f}% {branches:4.0f}%  {name}")
    lines, branches = both(measured["totals"])
    terminalreporter.write_line(
        f"{lines:.1f}% of the lines and {branches:.1f}% of the branches ran; above are the files "
        f"of which less than {WELL_COVERED}% of either did"
    )
