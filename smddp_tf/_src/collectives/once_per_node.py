"""Runs a function on one rank of each node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smddp_tf._src.collectives.checks import resolve_name
from smddp_tf._src.collectives.objects import allgather_object
from smddp_tf._src.job import basics
from smddp_tf._src.job.process_sets import check_process_set, global_process_set


def once_per_node(
    function: Callable[..., Any], *args: Any, name: str | None = None, **kwargs: Any
) -> Any:
    """Calls ``function(*args, **kwargs)`` on the first rank of each node; the others wait for it.

    All ranks of the job call this. It is for what a node needs once, such as downloading or
    unpacking data. A function and not a context manager, because Python runs the body of a `with`
    on every rank.

        folder = hvd.once_per_node(download, url)

    The others wait in a collective, so a call that takes longer than SMDDP_TIMEOUT_SECONDS (600)
    fails on them.

    Args:
      function: what to call.
      *args: its arguments.
      name: identifies the operation in messages; must be the same on all ranks.
      **kwargs: its keyword arguments.

    Returns:
      What the function returned on this rank's node; on the others a copy that was pickled.

    Raises:
      Exception: what the function raised, on the rank that called it.
      RuntimeError: it failed on another rank, of any node; the message says where and how.
      pickle.PicklingError: its result cannot be pickled; raised on all ranks.

    Examples:
      >>> def download(name):
      ...     return f"/data/{name}"
      >>> hvd.once_per_node(download, "digits")
      '/data/digits'
    """
    name = resolve_name(name, "once_per_node", check_process_set(global_process_set))
    result, problem, error = None, "", None
    first = basics.local_rank() == 0
    if first:
        try:
            result = function(*args, **kwargs)
        except Exception as raised:
            error, problem = raised, f"{type(raised).__name__}: {raised}"
    own = (basics.cross_rank(), result, problem) if first else None
    firsts = {
        rank: one for rank, one in enumerate(allgather_object(own, name=name)) if one is not None
    }
    if error is not None:
        raise error
    failed = {rank: problem for rank, (_, _, problem) in firsts.items() if problem}
    if failed:
        where = "; ".join(f"rank {rank}: {problem}" for rank, problem in failed.items())
        called = getattr(function, "__name__", repr(function))
        raise RuntimeError(f"once_per_node({called}) failed on another rank: {where}")
    if first:
        return result
    return next(value for node, value, _ in firsts.values() if node == basics.cross_rank())
