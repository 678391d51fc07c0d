"""The names of Horovod's collectives that a script has given none.

Ranks of several process sets make different numbers of them in each, so each set counts its own.
"""

from __future__ import annotations

import collections
import threading

from smddp_tf._src.job.process_sets import set_of

# By the ranks of the process set (none: all ranks) and the function.
Unnamed = collections.Counter[tuple[tuple[int, ...], str]]

_unnamed: Unnamed = collections.Counter()
_counting = threading.Lock()


def next_name(what: str, number: int) -> str:
    """The name of the next collective of a function on the process set with this number."""
    key = tuple(set_of(number).ranks or ()) if number else (), what
    with _counting:
        _unnamed[key] += 1
        return f"noname.{_unnamed[key]}"


def count() -> Unnamed:
    """How many there were, of each set and function."""
    with _counting:
        return _unnamed.copy()


def count_from(counts: Unnamed) -> None:
    """Goes on from count()'s result, as ranks do that have come since."""
    with _counting:
        _unnamed.clear()
        _unnamed.update(counts)
