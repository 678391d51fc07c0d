"""Pickles of objects that ranks send, or keep in files."""

from __future__ import annotations

import pickle
from typing import Any


def pickled(obj: Any) -> tuple[Any, ...]:
    """Returns (pickle, True), or (the reason why obj cannot be pickled, False).

    Falls back to cloudpickle, if installed, for lambdas and local classes. cloudpickle is not the
    first choice because it serializes the script's own classes by value, so receivers would get
    copies of them.
    """
    try:
        return pickle.dumps(obj), True
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    try:
        import cloudpickle
    except ImportError:
        return f"{problem} (cloudpickle, if it is installed, may take it)".encode(), False
    try:
        return cloudpickle.dumps(obj), True
    except Exception as error:
        return f"{type(error).__name__}: {error}".encode(), False
