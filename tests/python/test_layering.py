"""The house's order: nothing lower knows anything higher, and files stay small."""

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]

ROOMS = ["core", "kernels", "transport", "collective", "engine", "capi", "tf"]
# A module may import those of lower levels, and its neighbours on its own.
LEVELS = [
    {"errors", "_version", "_config", "_plan"},
    {"_native"},
    {"_runtime", "_compression", "_queries"},
    {"_xla"},
    {"_ops"},
    {"_collectives", "_plan_ops"},
    {"_variables", "_reduce", "_exchange"},
    {"_tape"},
    {"keras"},
    {"__init__"},
]


def test_cpp_rooms_include_downward_only():
    """A room may include itself and lower rooms; the TensorFlow ops use core and capi alone."""
    for path in (ROOT / "ops").rglob("*.[hc]*"):
        room = path.parent.name
        if room not in ROOMS:
            continue
        for included in re.findall(r'#include "([a-z_]+)/', path.read_text()):
            assert ROOMS.index(included) <= ROOMS.index(room), f"{path} includes {included}/"
            if room == "tf":
                assert included in ("tf", "capi", "core"), f"{path} includes {included}/"


def imports_of(path):
    """The modules of the package that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("smddp_tf"):
            if node.module == "smddp_tf":
                yield from (alias.name for alias in node.names)
            else:
                yield node.module.split(".")[1]


def test_python_modules_import_downward_only():
    """Every module has a level, and imports no higher one."""
    level = {name: i for i, names in enumerate(LEVELS) for name in names}
    for path in (ROOT / "smddp_tf").glob("*.py"):
        assert path.stem in level, f"{path.name} has no level in this test"
        for imported in imports_of(path):
            assert level[imported] <= level[path.stem], f"{path.name} imports {imported}"


def test_environment_has_one_reader():
    """Only _config.py reads SMDDP_* in Python, only core/config.cc in C++."""
    for path in (ROOT / "smddp_tf").glob("*.py"):
        assert path.name == "_config.py" or "os.environ" not in path.read_text(), path
    for path in (ROOT / "ops").rglob("*.cc"):
        assert path.name == "config.cc" or 'getenv("SMDDP' not in path.read_text(), path


def test_files_are_small():
    """A file over 400 lines is usually two ideas."""
    for folder in ("ops", "smddp_tf", "tests", "benchmarks", "examples"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".cc", ".h", ".c", ".cu"):
                lines = len(path.read_text().splitlines())
                assert lines <= 400, f"{path} has {lines} lines"


def test_the_version_is_the_same_everywhere():
    """pyproject.toml and the package agree."""
    from smddp_tf._version import __version__

    assert f'version = "{__version__}"' in (ROOT / "pyproject.toml").read_text()
