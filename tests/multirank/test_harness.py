"""The harness itself: bodies are real files, and what cannot be run is told before ranks start."""

import ast
import pathlib
import re
import signal
import subprocess
import sys
import time

import launcher
import pytest
from bodies import for_harness

HERE = pathlib.Path(__file__).resolve().parent
FILE = HERE / "bodies/for_harness.py"
EQUALITY = HERE / "equality.py"


def line_of(text: str) -> int:
    """The number of the only line of the file that has the text."""
    [number] = [n for n, line in enumerate(FILE.read_text().splitlines(), 1) if text in line]
    return number


@pytest.mark.parametrize("cold", [False, True])
def test_a_traceback_shows_the_file_and_its_line(job, cold):
    """And the line's text, as Python shows it for any file."""
    result = job(for_harness.fails(7), 2, cold=cold)
    assert result.returncode != 0 and not result.timed_out
    place = f'File "{FILE}", line {line_of("# the line")}, in fails'
    assert place in result.output, result.output[-4000:]
    assert "  # the line" in result.output
    assert "RuntimeError: this line was told to fail with 7" in result.output


@pytest.mark.parametrize(
    ("cold", "limit"), [(False, 6), pytest.param(True, 15, marks=pytest.mark.thorough)]
)
def test_a_hang_is_ended_and_shows_where(job, tmp_path, cold, limit):
    """Every rank's stacks at about the limit; nothing is left running."""
    result = job(for_harness.hangs, 2, timeout=limit, cold=cold)
    assert result.timed_out
    place = f'File "{FILE}", line {line_of("# where it hangs")} in hangs'
    assert place in result.where[1], result.where
    assert re.search(r"thread \d+ \S+: S \(sleeping\), .* call \d+\(0x", result.where[0])
    with pytest.raises(AssertionError, match=r"(?s)the job hung:.*rank 1 was at:.* in hangs"):
        result.check(2)
    left = [pathlib.Path("/proc", path.read_text()) for path in tmp_path.glob("pid*")]
    until = time.monotonic() + 10
    while any(process.exists() for process in left) and time.monotonic() < until:
        time.sleep(0.05)
    assert len(left) == 2 and not any(process.exists() for process in left)


def test_a_machine_that_stands_still():
    """Its seconds are those in which it ran: here the process is stopped for two."""
    code = "import machine_time; watch = machine_time.Stopwatch(); print('begun', flush=True); "
    code += "input(); print(watch.seconds(), watch.standstill())"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], cwd=HERE, **pipes) as process:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(2)
        process.send_signal(signal.SIGCONT)
        seconds, standstill = map(float, process.communicate("\n", timeout=600)[0].split())
    assert seconds < 1 and standstill > 1.5, (seconds, standstill)


def test_arguments_and_reports(job, tmp_path):
    """JSON both ways, after shutdown() too."""
    given = {"a": [1, 2.5, None], "b": 'quoted "ä" \\ {x} \n'}
    results = job(for_harness.reports(given, more=True), 2).check(2)
    assert results[0] == {"given": given, "more": True, "folder": str(tmp_path)}
    assert job(for_harness.reports(given=1), 1).check(1)[0]["more"] == "default"


def test_a_body_without_init(job):
    """It calls init() itself, or never."""
    results = job(for_harness.is_on_its_own, 2).check(2)
    assert [results[r]["rank"] for r in (0, 1)] == [0, 1]
    assert not results[0]["initialized"] and results[0]["pid"] != results[1]["pid"]


def test_what_is_not_there_is_told_at_once(tmp_path):
    """Files, functions and arguments: no rank is started."""
    with pytest.raises(ImportError, match="nowhere"):
        from bodies import nowhere  # noqa: F401
    with pytest.raises(AttributeError, match=r"for_harness.py has no function 'fail'; it has fai"):
        for_harness.fail  # noqa: B018
    for call, words in (
        (lambda: for_harness.fails(numbers=1), r"fails\(\): missing a required argument"),
        (lambda: for_harness.hangs(1), r"hangs\(\): too many positional arguments"),
        (lambda: for_harness.reports(1, other=2), "unexpected keyword argument 'other'"),
        (lambda: launcher.run_ranks(for_harness.fails, 2, tmp_path), "argument.*'number'"),
        (lambda: launcher.run_ranks(for_harness.fails({1}), 2, tmp_path), "not JSON serializable"),
    ):
        with pytest.raises(TypeError, match=words):
            call()
    assert not list(tmp_path.iterdir())


def test_a_body_is_named_without_being_imported():
    """TensorFlow would take seconds and much memory of every test process."""
    code = "import sys; from bodies import tape; tape.kinds_of_gradients; print(list(sys.modules))"
    command = [sys.executable, "-c", code]
    options = {"cwd": HERE, "check": True, "capture_output": True, "text": True, "timeout": 600}
    names = ast.literal_eval(subprocess.run(command, **options).stdout)
    assert "bodies" in names and not {"tensorflow", "numpy", "bodies.tape"} & set(names)


def _named_in(path) -> set:
    """(file in bodies/, function) of each body that a test file names."""
    tree = ast.parse(path.read_text())
    files = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "bodies":
            files.update({one.asname or one.name: one.name for one in node.names})
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        said = f"{path.name}: `from bodies import tape`, never `from bodies.tape import ...`"
        assert not any(name.startswith("bodies.") for name in names), said
    return {
        (files[node.value.id], node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in files
    }


def _functions_and_uses(path) -> tuple:
    """The public functions of a file of bodies, and the names that it uses."""
    tree = ast.parse(path.read_text())
    functions = {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    used |= {one.name for node in imports if "bodies." in node.module for one in node.names}
    return {name for name in functions if name[0] != "_"}, used


def test_bodies_are_there_and_none_is_left_over():
    """Every body that a test names exists, and every one that exists is named."""
    named = set().union(*[_named_in(path) for path in [*HERE.parent.glob("*/test_*.py"), EQUALITY]])
    named -= {("for_harness", "fail")}  # which the test above says
    found = [
        (path.stem, *_functions_and_uses(path))
        for path in (HERE / "bodies").glob("*.py")
        if path.stem != "__init__"
    ]
    there = {(file, name) for file, functions, _ in found for name in functions}
    assert named <= there, named - there
    helpers = set().union(*[used for _, _, used in found])
    left_over = {(file, name) for file, name in there - named if name not in helpers}
    assert not left_over
