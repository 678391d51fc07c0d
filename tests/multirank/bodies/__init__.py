"""What ranks do in the tests: bodies/tape.py has the bodies of test_tape.py, as plain functions.

A test names a function and its arguments, and imports neither its file nor, with it, TensorFlow:

    from bodies import tape

    job(tape.kinds_of_gradients, ranks=2)
    job(tape.steps(count=3, kind="sparse"), ranks=2)

`tape` stands for the file: it has its functions' names and parameters, as the file's text shows
them. A name or an argument that the file does not have is an error at once, before any rank starts.
On the ranks harness.py imports the file and calls the function. There bodies import what they share
by its full name: `from bodies.order import late`.
"""

import ast
import inspect
import json
import pathlib

HERE = pathlib.Path(__file__).resolve().parent


def _signature(function: ast.FunctionDef) -> inspect.Signature:
    """The parameters of a function; of their defaults only whether they have one."""
    given = function.args
    kinds = inspect.Parameter
    named = [*given.posonlyargs, *given.args]
    required = len(named) - len(given.defaults)
    parameters = [
        kinds(one.arg, kinds.POSITIONAL_OR_KEYWORD, default=kinds.empty if i < required else None)
        for i, one in enumerate(named)
    ]
    for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        empty = kinds.empty if default is None else None
        parameters.append(kinds(one.arg, kinds.KEYWORD_ONLY, default=empty))
    return inspect.Signature(parameters)


class Body:
    """A function of a file here, with the arguments that it gets on every rank."""

    def __init__(self, file: str, name: str, signature: inspect.Signature, arguments: dict):
        self._file, self._name, self._signature = file, name, signature
        self._arguments = arguments

    def __repr__(self):
        return f"bodies/{self._file}.py: {self._name}(**{self._arguments})"

    def __call__(self, *args, **kwargs) -> "Body":
        """The same function with these arguments. They are sent as JSON."""
        arguments = self._bind(args, {**self._arguments, **kwargs})
        return Body(self._file, self._name, self._signature, arguments)

    def _bind(self, args, kwargs) -> dict:
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise TypeError(f"bodies/{self._file}.py: {self._name}(): {error}") from None

    def words(self) -> list:
        """What names it to harness.py: the module, the function, and the arguments as JSON."""
        arguments = self._bind((), self._arguments)
        return [f"bodies.{self._file}", self._name, json.dumps(arguments)]


class Bodies:
    """The functions of a file here, none of which is run."""

    def __init__(self, file: str):
        self._file = file
        tree = ast.parse((HERE / f"{file}.py").read_text())
        self._functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}

    def __getattr__(self, name: str) -> Body:
        function = self._functions.get(name)
        if function is None:
            there = ", ".join(self._functions)
            raise AttributeError(f"bodies/{self._file}.py has no function {name!r}; it has {there}")
        return Body(self._file, name, _signature(function), {})


def __getattr__(name: str) -> Bodies:
    if name.startswith("_") or not (HERE / f"{name}.py").exists():
        raise AttributeError(f"there is no bodies/{name}.py")
    globals()[name] = Bodies(name)
    return globals()[name]
