"""Python objects from one rank to all, or from all to all."""

from __future__ import annotations

import pickle
from typing import Any

from smddp_tf._collectives.allgather import allgather
from smddp_tf._collectives.broadcast import broadcast
from smddp_tf._collectives.checks import check_root
from smddp_tf._graph import order
from smddp_tf._graph.framework import tensorflow
from smddp_tf._job import basics
from smddp_tf._job.process_sets import ProcessSet, check_process_set, global_process_set

tf = tensorflow()


def _pickled(obj) -> tuple:
    """(bytes, True), or the reason why obj cannot be pickled and False.

    cloudpickle, where it is installed, takes what pickle does not: lambdas, local classes. It is
    not asked first, because it would send classes of the script as copies of themselves.
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
    """Raises, on all ranks, for the ranks whose object could not be pickled."""
    if reasons:
        text = "; ".join(f"rank {rank}: {reason.decode()}" for rank, reason in reasons.items())
        raise pickle.PicklingError(f"an object cannot be pickled, so no rank gets it: {text}")


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
):
    """Gives every rank the root's Python object.

    Args:
      obj: anything that pickle takes, or cloudpickle if that is installed; only the root's is
        looked at.
      root_rank: the rank whose object all get: its number in the job, not in the set.
      session: accepted for old scripts.
      name: for messages; must be the same on all ranks.
      process_set: the ranks that take part; this rank must be one of them.

    Returns:
      The root's object (on the root, obj itself).

    Raises:
      pickle.PicklingError: the root's object cannot be pickled; on all ranks.
    """
    del session
    check_process_set(process_set)
    root_rank = check_root(root_rank, process_set)
    if process_set.size() == 1:
        return obj
    name = name or order.site_name("broadcast_object")
    is_root = basics.rank() == root_rank
    own, fine = _pickled(obj) if is_root else (b"", True)
    size = tf.constant(len(own) if fine else -len(own), tf.int64)  # negative: the reason's
    length = int(broadcast(size, root_rank, name + ".size", process_set=process_set))
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
):
    """Returns a function of one argument: broadcast_object with these arguments."""

    def call(obj):
        return broadcast_object(obj, root_rank, session, name, process_set)

    return call


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
):
    """Returns the list of the set's objects, in rank order.

    Each must be what pickle takes, or cloudpickle if that is installed.

    Raises:
      pickle.PicklingError: a rank's object cannot be pickled; on all ranks.
    """
    del session
    check_process_set(process_set)
    if process_set.size() == 1:
        return [obj]
    name = name or order.site_name("allgather_object")
    own, fine = _pickled(obj)
    size = tf.constant([len(own) if fine else -len(own)], tf.int64)  # negative: the reason's
    sizes = allgather(size, name + ".sizes", process_set=process_set)
    own = tf.io.decode_raw(own, tf.uint8)
    data = allgather(own, name, process_set=process_set).numpy().tobytes()
    parts, reasons, at = [], {}, 0
    # Not strict: a rank that waits in join() has no object.
    for rank, size in zip(process_set.ranks, sizes.numpy(), strict=False):
        parts.append(data[at : at + abs(size)])
        at += abs(int(size))
        if size < 0:
            reasons[rank] = parts[-1]
    _refuse_unpickled(reasons)
    return [pickle.loads(part) for part in parts]
