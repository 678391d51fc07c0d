"""What run() and its ranks send each other: pickles, by cloudpickle where it is installed.

cloudpickle comes first: it sends what __main__ defines by value, where pickle would send its name.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_INSTALL = "`pip install cloudpickle` lets functions of a script's main module or a notebook travel"


def _installed() -> Any:
    try:
        import cloudpickle
    except ImportError:
        return None
    return cloudpickle


def dumps(value: Any) -> bytes:
    """The pickle of a value. Raises whatever its class does if it cannot be pickled."""
    return (_installed() or pickle).dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def dumps_call(function: Callable, args: Sequence, kwargs: Mapping) -> bytes:
    """The pickle of a function with its arguments.

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
        return dumps((function, tuple(args), dict(kwargs)))
    except Exception as error:
        more = "" if _installed() else f"; {_INSTALL}"
        raise pickle.PicklingError(
            f"{name} or its arguments cannot be pickled, so no rank was started: "
            f"{type(error).__name__}: {error}. Make in the function what cannot travel, such as "
            f"locks, files, sessions and datasets{more}"
        ) from error


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
