"""The house's order: nothing lower knows anything higher, and files stay small."""

import ast
import inspect
import itertools
import pathlib
import re
import subprocess
import sys
import textwrap

ROOT = pathlib.Path(__file__).parents[2]

ROOMS = ["core", "kernels", "transport", "collective", "engine", "capi", "tf"]


def test_cpp_rooms_include_downward_only():
    """A room may include itself and lower rooms; the TensorFlow ops use core and capi alone."""
    for path in (ROOT / "ops").rglob("*.[hc]*"):
        room = path.relative_to(ROOT / "ops").parts[0]
        if room not in ROOMS:
            continue
        for included in re.findall(r'#include "([a-z_]+)/', path.read_text()):
            assert ROOMS.index(included) <= ROOMS.index(room), f"{path} includes {included}/"
            if room == "tf":
                assert included in ("tf", "capi", "core"), f"{path} includes {included}/"


def test_no_cpp_file_includes_in_a_circle():
    """Inside a room too: what a header and its source include, followed down, never comes back."""
    below: dict = {}
    for path in (ROOT / "ops").rglob("*.[hc]*"):
        if path.suffix in (".h", ".cc"):
            unit = str(path.relative_to(ROOT / "ops").with_suffix(""))
            included = re.findall(r'#include "([a-z_/]+)\.h"', path.read_text())
            below.setdefault(unit, set()).update(set(included) - {unit})
    finished: set = set()

    def follow(unit, way):
        assert unit not in way, " includes ".join([*way, unit])
        for included in sorted(below.get(unit, set()) - finished):
            follow(included, [*way, unit])
        finished.add(unit)

    for unit in sorted(below):
        follow(unit, [])


def test_no_thread_is_detached_after_it_has_begun():
    """core/detached_thread.h says why; it does it before."""
    for path in [*(ROOT / "ops").rglob("*.[hc]*"), *(ROOT / "tests").rglob("*.[hc]*")]:
        if path.suffix not in (".h", ".cc"):
            continue
        assert ".detach()" not in path.read_text(), f"{path}: use RunDetached()"


def _executed(tree):
    """The nodes of a module, without what stands there for editors only."""
    for_editors = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
    ]
    unseen = {id(below) for node in for_editors for below in ast.walk(node)}
    return [node for node in ast.walk(tree) if id(node) not in unseen]


def test_every_module_has_a_layer():
    """import-linter does not miss one that its layers in pyproject.toml do not name."""
    layers = (ROOT / "pyproject.toml").read_text().partition("\nlayers = [")[2].partition("]")[0]
    named = set(re.findall(r"smddp_tf\.([\w.]+)", layers))
    package = ROOT / "smddp_tf"
    for path in [*package.glob("*.py"), *package.glob("*/__init__.py"), *package.glob("_src/*")]:
        name = ".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__")
        if name not in ("__init__", "_src", "_src.__init__", "_src.__pycache__"):
            assert name in named, f"give {path} a layer"


def _top_level_names(path) -> set:
    """What can be imported from a file: definitions, assignments, imports, submodules."""
    tree = ast.parse(path.read_text())
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name for alias in node.names}
    if path.name == "__init__.py":
        names |= {below.stem for below in path.parent.iterdir()}
    return names


def test_every_import_of_the_package_finds_its_names():
    """In functions too, which no test may call."""
    for path in (ROOT / "smddp_tf").rglob("*.py"):
        for node in _executed(ast.parse(path.read_text())):
            module = getattr(node, "module", None) or ""
            if not isinstance(node, ast.ImportFrom) or not module.startswith("smddp_tf."):
                continue
            file = ROOT.joinpath(*module.split(".")).with_suffix(".py")
            file = file if file.exists() else file.with_suffix("") / "__init__.py"
            found = _top_level_names(file) | {"*"}
            missing = {alias.name for alias in node.names} - found
            assert not missing, f"{path} imports {missing} from {module}"


def test_every_import_among_the_tests_finds_its_names():
    """`make test` does not run all of them: some need PyTorch."""
    files: dict = {}
    for folder in ("tests", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            files.setdefault(path.stem, []).append(path)
    checked = 0
    for path in itertools.chain.from_iterable(files.values()):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or node.module not in files:
                continue
            beside = [other for other in files[node.module] if other.parent == path.parent]
            found = set().union(*map(_top_level_names, beside or files[node.module]))
            missing = {alias.name for alias in node.names} - found
            assert not missing, f"{path} imports {missing} from {node.module}"
            checked += 1
    assert checked > 100, checked


def test_environment_has_one_reader():
    """In Python config.py, for Horovod's compat/, for PyTorch's torch/; in C++ core/config.cc."""
    reads = re.compile(r"environ(\.get|\.setdefault|\.pop|\[)|getenv")
    readers = ["_src/job/config.py", "compat/environment.py", "torch/_environment.py"]
    readers = [ROOT / "smddp_tf" / reader for reader in [*readers, "torch_autoload.py"]]
    for path in (ROOT / "smddp_tf").rglob("*.py"):
        assert path in readers or not reads.search(path.read_text()), path
    for path in (ROOT / "ops").rglob("*.cc"):
        assert path.name == "config.cc" or 'getenv("SMDDP' not in path.read_text(), path


def test_files_are_small():
    """A file over 600 lines is usually two ideas."""
    for folder in ("ops", "smddp_tf", "tests", "benchmarks", "examples"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".cc", ".h", ".c", ".cu"):
                lines = len(path.read_text().splitlines())
                assert lines <= 600, f"{path} has {lines} lines"


def test_the_version_is_the_same_everywhere():
    """pyproject.toml and the package agree."""
    from smddp_tf._version import __version__

    assert f'version = "{__version__}"' in (ROOT / "pyproject.toml").read_text()


def _written_names(path) -> list:
    """The strings that a file assigns to __all__."""
    tree = ast.parse(path.read_text())
    assigned = (node for node in tree.body if isinstance(node, ast.Assign))
    value = next(node.value for node in assigned if node.targets[0].id == "__all__")
    return ast.literal_eval(value)


def test_editors_see_every_name():
    """The names that are imported late are imported where only tools look, and from there."""
    import smddp_tf

    tree = ast.parse((ROOT / "smddp_tf/__init__.py").read_text())
    shown = {}
    for node in tree.body:
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            for imported in node.body:
                for name in imported.names:
                    shown[name.name] = imported.module.removeprefix("smddp_tf.")
    later = smddp_tf._NEED_TENSORFLOW | smddp_tf._LATER
    differ = set(shown.items()) ^ set(later.items())
    assert not differ, f"names loaded later and the imports under TYPE_CHECKING differ in {differ}"
    # They take __all__ for what is public if it is a list of strings, and nothing computed.
    assert set(_written_names(ROOT / "smddp_tf/__init__.py")) == set(smddp_tf.__all__)
    missing = set(later) - set(smddp_tf.__all__)
    assert not missing, f"__all__ of smddp_tf/__init__.py lacks {missing}"
    assert (ROOT / "smddp_tf/py.typed").exists()


def test_keras_has_all_names_of_the_package():
    """As Horovod's Keras module: the same objects, except two that differ for Keras."""
    import smddp_tf.keras

    keras = smddp_tf.keras
    assert set(_written_names(ROOT / "smddp_tf/keras/__init__.py")) == set(keras.__all__)
    missing = set(smddp_tf.__all__) - set(keras.__all__)
    assert not missing, f"smddp_tf/keras/__init__.py does not import, or list in __all__, {missing}"
    others = [n for n in smddp_tf.__all__ if getattr(smddp_tf, n) is not getattr(keras, n)]
    assert others == ["DistributedOptimizer", "elastic"]


def test_help_without_tensorflow():
    """help() shows what there is; the rest needs TensorFlow."""
    code = """
import sys
sys.modules["tensorflow"] = None
import pydoc, re, smddp_tf
text = pydoc.plain(pydoc.render_doc(smddp_tf))
# From Python 3.13 on each argument has a line.
assert re.search(r"init\\(\\s*comm", text) and "ReduceOp" in text, text
print(smddp_tf.Sum, f"{smddp_tf.Average}", repr(smddp_tf.Max), int(smddp_tf.Product))
"""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["Sum", "Average", "Max", "5"]


def _public_functions():
    """(name, function, whether it is a method) of what scripts call, and constructors."""
    import smddp_tf.keras
    from smddp_tf import sagemaker, timeline

    keras = smddp_tf.keras
    for module in (smddp_tf, keras, keras.callbacks, keras.elastic, sagemaker, timeline):
        for name in getattr(module, "__all__", None) or dir(module):
            value = getattr(module, name)
            if not getattr(value, "__module__", "").startswith("smddp_tf"):
                continue
            is_class = inspect.isclass(value)
            for key, member in vars(value).items() if is_class else [(name, value)]:
                if inspect.isfunction(member) and (key == "__init__" or key[0] != "_"):
                    yield f"{module.__name__}.{name}.{key}", member, is_class


def test_every_public_argument_has_a_type():
    """For editors and type checkers; so has what functions return."""
    untyped = []
    for name, function, is_method in _public_functions():
        signature = inspect.signature(function)
        for argument in signature.parameters.values():
            if argument.annotation is argument.empty and argument.name != "self":
                untyped.append(f"{name}: {argument.name}")
        if signature.return_annotation is signature.empty and not is_method:
            untyped.append(f"{name}: what it returns")
    assert not untyped


def test_every_public_function_is_checked_strictly():
    """By mypy, whose strict modules pyproject.toml lists; one that ends with .* has those below."""
    overrides = (ROOT / "pyproject.toml").read_text().partition("[[tool.mypy.overrides]]")[2]
    strict = re.findall(r'^  "(smddp_tf[\w.]*(?:\*)?)",$', overrides, re.M)
    modules = {function.__module__ for _, function, _ in _public_functions()}
    assert len(modules) > 20
    for module in sorted(modules):
        folders = [one[:-1] for one in strict if one.endswith("*")]
        listed = module in strict or f"{module}.".startswith(tuple(folders))
        assert listed, f"give [tool.mypy.overrides] {module}, which has public functions"
