"""run(): a training that begins with its last commit."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from smddp_tf._src.collectives.barrier import barrier
from smddp_tf._src.collectives.objects import broadcast_object
from smddp_tf._src.job import basics
from smddp_tf.keras.elastic._state import State


def _resume(state: State) -> bool:
    """state.resume() of rank 0; all ranks hear how it went."""
    resumed, problem = False, None
    try:
        resumed = state.resume()
    except ValueError as error:
        problem = str(error)
    resumed, problem = broadcast_object((resumed, problem), 0, name="elastic resume")
    if problem is not None:
        raise ValueError(problem)
    return resumed


def _warn_if_forgotten(state: State) -> None:
    if not state.is_kept() and basics.size() > 1 and basics.rank() == 0:
        warnings.warn(
            "commits of the elastic state stay in memory, so a job that fails begins anew: start "
            "it with `smddprun --max-restarts N`, or name a folder in SMDDP_COMMITS",
            RuntimeWarning,
            stacklevel=3,
        )


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a training, so that a restarted job goes on from its last commit.

    The decorated function takes the state first. When it is called, rank 0 takes up the last commit
    of the job before, if that failed, and gives its state to all ranks. If there was a commit, the
    state's reset callbacks run. Then the function is called. An error in it ends the rank, and so
    the job, which ``smddprun --max-restarts N`` starts again. When it has returned on all ranks,
    the commit is removed.

    Args:
      func: a function whose first argument is a state, of KerasState, say.

    Returns:
      The decorated function, which returns what func returns.

    Raises:
      TypeError: the first argument of a call is not a state.
      ValueError: the last commit cannot be read, or is of another model; raised on all ranks.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(state, State):
            raise TypeError(
                f"{func.__name__}() got {type(state).__name__} first; what is decorated by "
                "elastic.run takes a state first, such as hvd.elastic.TensorFlowKerasState"
            )
        _warn_if_forgotten(state)
        resumed = _resume(state)
        state.sync()
        if resumed:
            state.on_reset()
            state.save()
        result = func(state, *args, **kwargs)
        if basics.is_initialized():
            barrier()  # a rank that fails at the very end still finds the commit
            state.finish()
        return result

    return wrapper
