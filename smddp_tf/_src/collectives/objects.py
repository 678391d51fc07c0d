"""Broadcast and allgather of Python objects."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from smddp_tf._src.collectives.allgather import allgather
from smddp_tf._src.collectives.broadcast import broadcast
from smddp_tf._src.collectives.checks import check_root, resolve_name
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.graph.order import in_session
from smddp_tf._src.job import basics
from smddp_tf._src.job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf._src.pickles import pickled

tf = tensorflow()


def _refuse_unpickled(reasons: dict[Any, Any]) -> None:
    """Raises on all ranks if any rank's object could not be pickled."""
    if reasons:
        text = "; ".join(f"rank {rank}: {reason.decode()}" for rank, reason in reasons.items())
        raise pickle.PicklingError(f"an object cannot be pickled, so no rank gets it: {text}")


def _require_values(what: str) -> None:
    """Raises RuntimeError inside tf.function, which has no value to unpickle."""
    if not tf.executing_eagerly() and not in_session():
        raise RuntimeError(
            f"{what}() sends an object when it is called; call it outside of tf.function"
        )


def _value_of(collective: Callable[[], Any]) -> Any:
    """The numpy value of the tensor that a function returns.

    A TF1 program gets it from a session and a graph of its own: the script's graph may be
    finalized, and eager execution would open all GPUs, whichever its sessions are told to use.
    """
    if tf.executing_eagerly():
        return collective().numpy()
    config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        return session.run(collective())


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

    Examples:
      >>> hvd.broadcast_object({"epoch": 3}, root_rank=0)
      {'epoch': 3}
    """
    del session
    group = check_process_set(process_set)
    root_rank = check_root(root_rank, process_set)
    if group.size == 1:
        return obj
    _require_values("broadcast_object")
    name = resolve_name(name, "broadcast_object", group)

    is_root = basics.rank() == root_rank
    own, fine = pickled(obj) if is_root else (b"", True)
    size = np.int64(len(own) if fine else -len(own))  # negative: an error text
    length = _value_of(lambda: broadcast(size, root_rank, f"{name}.size", process_set=process_set))

    data = np.frombuffer(own, np.uint8) if is_root else np.zeros([abs(length)], np.uint8)
    received = _value_of(lambda: broadcast(data, root_rank, name, process_set=process_set))

    if length < 0:
        _refuse_unpickled({root_rank: received.tobytes()})
    return obj if is_root else pickle.loads(received.tobytes())


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Returns a function of one object that calls broadcast_object with these arguments.

    Examples:
      >>> from_rank_0 = hvd.broadcast_object_fn(root_rank=0)
      >>> from_rank_0([1, 2])
      [1, 2]
    """

    def call(obj: Any) -> Any:
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

    Examples:
      >>> hvd.allgather_object({"rank": hvd.rank()})
      [{'rank': 0}]
    """
    del session
    group = check_process_set(process_set)
    if group.size == 1:
        return [obj]
    _require_values("allgather_object")
    name = resolve_name(name, "allgather_object", group)

    own, fine = pickled(obj)
    size = np.array([len(own) if fine else -len(own)], np.int64)  # negative: an error text
    sizes = _value_of(lambda: allgather(size, f"{name}.sizes", process_set=process_set))

    own = np.frombuffer(own, np.uint8)
    data = _value_of(lambda: allgather(own, name, process_set=process_set)).tobytes()

    parts, reasons, at = [], {}, 0
    # Not strict: a joined rank contributes no object.
    for rank, size in zip(group.ranks, sizes, strict=False):
        parts.append(data[at : at + abs(size)])
        at += abs(int(size))
        if size < 0:
            reasons[rank] = parts[-1]
    _refuse_unpickled(reasons)
    return [pickle.loads(part) for part in parts]
