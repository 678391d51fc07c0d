"""Broadcast and allgather of Python objects."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from smddp_tf._collectives.allgather import allgather
from smddp_tf._collectives.broadcast import broadcast
from smddp_tf._collectives.checks import check_root, name_or_site
from smddp_tf._graph.framework import tensorflow
from smddp_tf._job import basics
from smddp_tf._job.process_sets import ProcessSet, check_process_set, global_process_set

tf = tensorflow()


def _pickled(obj) -> tuple:
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


def _refuse_unpickled(reasons: dict) -> None:
    """Raises on all ranks if any rank's object could not be pickled."""
    if reasons:
        text = "; ".join(f"rank {rank}: {reason.decode()}" for rank, reason in reasons.items())
        raise pickle.PicklingError(f"an object cannot be pickled, so no rank gets it: {text}")


def _require_eager(what: str) -> None:
    """Raises RuntimeError while a graph is traced, which has no value to unpickle."""
    if not tf.executing_eagerly():
        raise RuntimeError(
            f"{what}() sends an object when it is called; call it outside of tf.function"
        )


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends the root's Python object to every rank.

    Args:
      obj: any object that pickle (or cloudpickle, if installed) accepts; ignored on ranks other
        than the root.
      root_rank: the rank to broadcast from, as numbered in the job, not in the set.
      session: ignored, accepted for compatibility.
      name: identifies the operation in messages; must be the same on all ranks.
      process_set: the ranks that take part; must include this rank.

    Returns:
      The root's object (on the root, obj itself).

    Raises:
      pickle.PicklingError: the root's object cannot be pickled; raised on all ranks.
    """
    del session
    group = check_process_set(process_set)
    root_rank = check_root(root_rank, process_set)
    if group.size == 1:
        return obj
    _require_eager("broadcast_object")
    name = name_or_site(name, "broadcast_object")

    is_root = basics.rank() == root_rank
    own, fine = _pickled(obj) if is_root else (b"", True)
    size = tf.constant(len(own) if fine else -len(own), tf.int64)  # negative: an error text
    length = int(broadcast(size, root_rank, f"{name}.size", process_set=process_set))

    data = tf.io.decode_raw(own, tf.uint8) if is_root else tf.zeros([abs(length)], tf.uint8)
    received = broadcast(data, root_rank, name, process_set=process_set)

    if length < 0:
        _refuse_unpickled({root_rank: received.numpy().tobytes()})
    return obj if is_root else pickle.loads(received.numpy().tobytes())


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Returns a function of one object that calls broadcast_object with these arguments."""

    def call(obj):
        return broadcast_object(obj, root_rank, session, name, process_set)

    return call


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Returns the list of the ranks' objects, in rank order.

    Objects must be accepted by pickle, or by cloudpickle if it is installed.

    Raises:
      pickle.PicklingError: some rank's object cannot be pickled; raised on all ranks.
    """
    del session
    group = check_process_set(process_set)
    if group.size == 1:
        return [obj]
    _require_eager("allgather_object")
    name = name_or_site(name, "allgather_object")

    own, fine = _pickled(obj)
    size = tf.constant([len(own) if fine else -len(own)], tf.int64)  # negative: an error text
    sizes = allgather(size, f"{name}.sizes", process_set=process_set)

    own = tf.io.decode_raw(own, tf.uint8)
    data = allgather(own, name, process_set=process_set).numpy().tobytes()

    parts, reasons, at = [], {}, 0
    # Not strict: a joined rank contributes no object.
    for rank, size in zip(group.ranks, sizes.numpy(), strict=False):
        parts.append(data[at : at + abs(size)])
        at += abs(int(size))
        if size < 0:
            reasons[rank] = parts[-1]
    _refuse_unpickled(reasons)
    return [pickle.loads(part) for part in parts]
