"""Compares state across ranks: variables bit by bit, options by their text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from smddp_tf._src.collectives.checks import list_of
from smddp_tf._src.collectives.objects import allgather_object
from smddp_tf._src.gradients.reduce import source_name
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job import basics
from smddp_tf._src.job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf._src.plan.buckets import normal_name
from smddp_tf._src.types import Variable
from smddp_tf.errors import RanksDifferError

tf = tensorflow()


def digest(variable: Variable) -> str:
    """A hash of a variable's shape, dtype and bits."""
    value = np.ascontiguousarray(tf.convert_to_tensor(variable).numpy())
    is_text = value.dtype == object
    data = repr(value.tolist()).encode() if is_text else value.reshape(-1).view(np.uint8).data
    what = f"{value.dtype} {list(value.shape)}"
    return f"{what} {hashlib.blake2b(data, digest_size=8).hexdigest()}"


def digests(variables: Iterable[Variable], kind: str) -> dict[str, tuple[str, str]]:
    """Hashes each variable, keyed by position, since names may differ between ranks.

    Args:
      variables: a list of variables, in the same order on all ranks.
      kind: prefix of the labels in messages: "variable" gives "variable dense/kernel".

    Returns:
      A dict: position -> (label, hash).
    """
    return {
        f"{kind} {i}": (
            f"{kind} {normal_name(source_name(variable, i))}",
            digest(variable),
        )
        for i, variable in enumerate(variables)
    }


def _phrase(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _difference(label: str, held: dict[Any, list[int]]) -> str:
    """One line for a differing entry: every value of an option; for a variable, who is off.

    A variable's reference is the value of most ranks; on a tie, the one with the lowest rank. held
    maps value -> ranks; None stands for ranks that lack the entry.
    """
    if not label.startswith(("variable", "optimizer variable")):
        return f"{label}: " + "; ".join(f"{value} on {_phrase(r)}" for value, r in held.items())
    missing = held.pop(None, [])
    usual = max(held.values(), key=lambda ranks: (len(ranks), -ranks[0]))
    parts = [f"differs on {_phrase(ranks)}" for ranks in held.values() if ranks is not usual]
    parts += [f"does not exist on {_phrase(missing)}"] if missing else []
    return f"{label} {' and '.join(parts)} (unlike {_phrase(usual)})"


def differences(
    own: dict[str, Any], name: str, process_set: ProcessSet = global_process_set
) -> list[str]:
    """Returns a line for each difference between the ranks; the lines are the same on all ranks.

    Collective over the set. If nothing differs it costs one allgather of a few bytes.

    Args:
      own: this rank's entries: key -> (label, text). Keys and texts are compared.
      name: identifies the operation in messages; the same on all ranks.
      process_set: the ranks that compare.
    """
    if process_set.size() == 1:
        return []
    compared = sorted((key, text) for key, (_, text) in own.items())
    short = hashlib.blake2b(repr(compared).encode(), digest_size=16).hexdigest()
    if len(set(allgather_object(short, name=name, process_set=process_set))) == 1:
        return []

    everybody = allgather_object(
        (basics.rank(), own), name=f"{name}, in detail", process_set=process_set
    )
    labels: dict[Any, Any] = {}
    for _, theirs in everybody:
        labels = {key: label for key, (label, _) in theirs.items()} | labels

    lines = []
    for key, label in labels.items():
        held: dict[Any, Any] = {}
        for rank, theirs in everybody:
            held.setdefault(theirs.get(key, (None, None))[1], []).append(rank)
        if len(held) > 1:
            lines.append(_difference(label, held))
    return lines


def require_equal(own: dict[str, Any], name: str, process_set: ProcessSet, when: str) -> None:
    """Raises if differences() finds any.

    Raises:
      RanksDifferError: the ranks differ; raised on all of them.
    """
    lines = differences(own, name, process_set)
    if lines:
        shown = [*lines[:20], *([f"and {len(lines) - 20} more"] if len(lines) > 20 else [])]
        raise RanksDifferError(f"{when} the ranks differ in\n  " + "\n  ".join(shown))


def check_ranks_equal(
    variables: Iterable[Variable],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Checks that variables are bitwise equal on all ranks. Every rank must call it.

    Meant for custom training loops, every few hundred steps; Keras users have
    hvd.callbacks.CheckRanksEqual. It copies every variable to the host and hashes it, but sends
    only a few bytes.

    Args:
      variables: a list of variables, or a dict of name -> variable, number or string; the same
        list or names on all ranks.
      name: identifies the operation in messages; must be the same on all ranks.
      process_set: the ranks that take part; must include this rank.

    Raises:
      smddp_tf.errors.RanksDifferError: variables differ; raised on all ranks. It names the
        variables, and the ranks that differ from the majority.
      RuntimeError: called inside a tf.function.
      ValueError: init() was not called, or this rank is not in the set.

    Examples:
      >>> hvd.check_ranks_equal([tf.Variable([1.0, 2.0])])  # raises if a bit differs
    """
    check_process_set(process_set)
    if not tf.executing_eagerly():
        raise RuntimeError("check_ranks_equal() reads values; call it outside of tf.function")
    if process_set.size() == 1:
        return

    own: dict[str, Any] = {}
    if isinstance(variables, dict):
        for label, value in variables.items():
            is_variable = hasattr(value, "shape")
            shown = f"variable {label}" if is_variable else str(label)
            own[shown] = (shown, digest(value) if is_variable else repr(value))
    else:
        own = digests(list_of(variables, "check_ranks_equal", "variables"), "variable")
    require_equal(own, name or "check_ranks_equal", process_set, "check_ranks_equal:")
