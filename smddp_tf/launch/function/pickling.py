"""What run() and its ranks send each other: pickles, by cloudpickle where it is installed.

cloudpickle comes first: it sends what __main__ defines by value, where pickle would send its name.
"""

from __future__ import annotations

import io
import linecache
import pickle
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_INSTALL = "`pip install cloudpickle` lets functions of a script's main module or a notebook travel"


def _installed() -> Any:
    try:
        import cloudpickle
    except ImportError:
        return None
    return cloudpickle


_NO_FILE = "<dynamic-code>"  # what cloudpickle writes for the file of all code


def _in_file(code: types.CodeType, file: str) -> types.CodeType:
    return code.replace(co_filename=file)


def dumps(value: Any) -> bytes:
    """The pickle of a value. Raises whatever its class does if it cannot be pickled."""
    return (_installed() or pickle).dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def _dumps_with_files(value: Any) -> tuple:
    """dumps(), and the files of the code in it: it keeps their names."""
    files: set = set()
    if _installed() is None:
        return dumps(value), files
    base: Any = _installed().Pickler

    class Pickler(base):
        def reducer_override(self, obj):
            if isinstance(obj, types.CodeType) and obj.co_filename != _NO_FILE:
                files.add(obj.co_filename)
                return _in_file, (obj.replace(co_filename=_NO_FILE), obj.co_filename)
            return super().reducer_override(obj)

    written = io.BytesIO()
    Pickler(written, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return written.getvalue(), files


def dumps_call(function: Callable, args: Sequence, kwargs: Mapping) -> tuple:
    """(pickle, sources) of a function with its arguments.

    The sources are those of the code that travels: file -> lines. A notebook's cells are in no file
    that ranks could read, and AutoGraph and tracebacks want them.

    Raises:
      pickle.PicklingError: it cannot be pickled.
    """
    name = getattr(function, "__qualname__", repr(function))
    if _installed() is None and getattr(function, "__module__", "") == "__main__":
        raise pickle.PicklingError(
            f"ranks cannot import {name} by its name, since it is defined in __main__; {_INSTALL}, "
            "or move it to a module"
        )
    try:
        call, files = _dumps_with_files((function, tuple(args), dict(kwargs)))
    except Exception as error:
        more = "" if _installed() else f"; {_INSTALL}"
        raise pickle.PicklingError(
            f"{name} or its arguments cannot be pickled, so no rank was started: "
            f"{type(error).__name__}: {error}. Make in the function what cannot travel, such as "
            f"locks, files, sessions and datasets{more}"
        ) from error
    return call, {file: linecache.getlines(file) for file in files}


def keep_sources(sources: Mapping) -> None:
    """In a rank: inspect and traceback find the lines of these files from now on."""
    for file, lines in sources.items():
        if lines:
            # Without a time, which would be compared with a file's.
            linecache.cache[file] = (sum(map(len, lines)), None, lines, file)


def dumps_result(value: Any) -> bytes:
    """The pickle of what a rank's function returned.

    Raises:
      pickle.PicklingError: it cannot be pickled.
    """
    try:
        return dumps(value)
    except Exception as error:
        raise pickle.PicklingError(
            f"the result, a {type(value).__name__}, cannot be pickled: {type(error).__name__}: "
            f"{error}. Return numbers, arrays or weights instead"
        ) from error
