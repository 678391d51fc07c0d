"""Whether all ranks hold the same: variables by their bits, and whatever has a text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from smddp_tf._collectives.objects import allgather_object
from smddp_tf._gradients.reduce import source_name
from smddp_tf._graph.framework import tensorflow
from smddp_tf._job import basics
from smddp_tf._job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf._plan.buckets import normal_name
from smddp_tf._types import Variable
from smddp_tf.errors import RanksDifferError

tf = tensorflow()


def digest(variable) -> str:
    """A hash of a variable's shape, dtype and bits."""
    value = np.ascontiguousarray(tf.convert_to_tensor(variable).numpy())
    is_text = value.dtype == object
    data = repr(value.tolist()).encode() if is_text else value.reshape(-1).view(np.uint8)
    what = f"{value.dtype} {list(value.shape)}"
    return f"{what} {hashlib.blake2b(data, digest_size=8).hexdigest()}"


def digests(variables, kind: str) -> dict:
    """A hash for each variable, by its place, since the ranks may have other names for it.

    Args:
      variables: a list of variables, in the same order on all ranks.
      kind: what they are, for messages: "variable" gives "variable dense/kernel".

    Returns:
      place -> (label, hash).
    """
    return {
        f"{kind} {i}": (
            f"{kind} {normal_name(source_name(variable, i))}",
            digest(variable),
        )
        for i, variable in enumerate(variables)
    }


def _phrase(ranks: list) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _difference(label: str, held: dict) -> str:
    """A line that says who differs from most, or from the first where there is no most.

    held is value -> ranks; the value None is that of ranks that have no such thing.
    """
    if not label.startswith(("variable", "optimizer variable")):
        return f"{label}: " + "; ".join(f"{value} on {_phrase(r)}" for value, r in held.items())
    missing = held.pop(None, [])
    usual = max(held.values(), key=lambda ranks: (len(ranks), -ranks[0]))
    parts = [f"differs on {_phrase(ranks)}" for ranks in held.values() if ranks is not usual]
    parts += [f"does not exist on {_phrase(missing)}"] if missing else []
    return f"{label} {' and '.join(parts)} (unlike {_phrase(usual)})"


def differences(own: dict, name: str, process_set=global_process_set) -> list:
    """What the ranks do not have alike: a line for each, the same on all ranks.

    When all is equal it costs one allgather of some bytes. Every rank of the set calls it.

    Args:
      own: what this rank has: key -> (label, text). Keys and texts are compared.
      name: for messages; the same on all ranks.
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
    labels: dict = {}
    for _, theirs in everybody:
        labels = {key: label for key, (label, _) in theirs.items()} | labels
    lines = []
    for key, label in labels.items():
        held: dict = {}
        for rank, theirs in everybody:
            held.setdefault(theirs.get(key, (None, None))[1], []).append(rank)
        if len(held) > 1:
            lines.append(_difference(label, held))
    return lines


def require_equal(own: dict, name: str, process_set, when: str) -> None:
    """Raises what differences() finds.

    Raises:
      RanksDifferError: on all ranks, if anything differs on any.
    """
    lines = differences(own, name, process_set)
    if lines:
        shown = [*lines[:20], *([f"and {len(lines) - 20} more"] if len(lines) > 20 else [])]
        raise RanksDifferError(f"{when} the ranks differ in\n  " + "\n  ".join(shown))


def check_ranks_equal(
    variables: Iterable[Variable],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
):
    """Checks that all ranks hold the same bits in some variables. Every rank calls it.

    For loops written by hand, every so many steps; under Keras there is
    hvd.callbacks.CheckRanksEqual. It reads every variable, so it costs about what a copy of them
    to the host and a hash cost; over the network go a few bytes.

    Args:
      variables: a list of variables, or a dict whose values are variables, numbers or texts and
        whose keys are their names, the same on all ranks.
      name: for messages; must be the same on all ranks.
      process_set: the ranks that take part; this rank must be one of them.

    Raises:
      smddp_tf.errors.RanksDifferError: on all ranks, if some differ; it names the variables and the
        ranks that do not have what most have.
      RuntimeError: inside a tf.function.
      ValueError: before init(), or this rank is not in the set.
    """
    check_process_set(process_set)
    if not tf.executing_eagerly():
        raise RuntimeError("check_ranks_equal() reads values; call it outside of tf.function")
    if process_set.size() == 1:
        return
    own: dict = {}
    if isinstance(variables, dict):
        for label, value in variables.items():
            is_variable = hasattr(value, "shape")
            shown = f"variable {label}" if is_variable else str(label)
            own[shown] = (shown, digest(value) if is_variable else repr(value))
    else:
        own = digests(variables, "variable")
    require_equal(own, name or "check_ranks_equal", process_set, "check_ranks_equal:")
