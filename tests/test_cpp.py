"""The C++ unit and contract tests, a test of this run for each of their files."""

import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PROGRAM = ROOT / "build" / "smddp_cpp_tests"
SOURCES = (ROOT / "tests" / "cpp").rglob("*.cc")
FILES = sorted({path.name for path in SOURCES if "\nTEST(" in path.read_text()})


@pytest.mark.parametrize("file", FILES)
def test_cpp(file):
    """All of the file pass; there is one at least."""
    result = subprocess.run(
        [PROGRAM, file], capture_output=True, text=True, timeout=600, check=False
    )
    failures = [line for line in result.stdout.splitlines() if not line.startswith("ok ")]
    assert result.returncode == 0, "\n".join(failures)[-8000:] + result.stderr[-8000:]
