"""run(): a training that goes on when ranks are lost, come or leave."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from smddp_tf._src.elastic.state import State
from smddp_tf._src.job import basics, rendezvous
from smddp_tf._src.job.adding_sets import (
    count_sets,
    forget_sets_from,
    make_sets_again,
    sets_table,
)
from smddp_tf._src.job.job import is_waiting, reconnect
from smddp_tf.errors import HostsUpdatedInterrupt, JobError


def _resume(state: State) -> bool:
    """state._resume() of rank 0; all ranks hear how it went."""
    resumed, problem = False, None
    try:
        resumed = state._resume()
    except ValueError as error:
        problem = str(error)
    resumed, problem = state._ranks.broadcast_object((resumed, problem), 0, "elastic resume")
    if problem is not None:
        raise ValueError(problem)
    return resumed


def _warn_if_forgotten(state: State) -> None:
    forgets = not (state._is_kept() or rendezvous.is_elastic())
    if forgets and basics.size() > 1 and basics.rank() == 0:
        warnings.warn(
            "commits of the elastic state stay in memory, so a job that fails begins anew: start "
            "it with `smddprun --max-restarts N`, or name a folder in SMDDP_COMMITS",
            RuntimeWarning,
            stacklevel=3,
        )


def _take_up(state: State, has_state: bool) -> None:
    """Gives all ranks the state of the one with most commits, or the last commit's of a job before.

    Newcomers call it together with the ranks that were there.

    Args:
      state: this rank's.
      has_state: it is the job's; a newcomer's is not, until it has got that of another.

    Raises:
      JobError: those that had the job's state are lost, and no file has it.
    """
    own = (has_state, state._commit_count), sets_table()
    places, tables = zip(*state._ranks.allgather_object(own, "elastic commits"), strict=True)
    if rendezvous.is_elastic():
        make_sets_again(tables)
    has_most, commits = max(places)
    resumed = not commits and _resume(state)
    if not (has_most or resumed):
        raise JobError(
            "all ranks that had the state of the training are lost, before those that came could "
            "get it; what the lost ranks have said tells why. smddprun --max-restarts N, or a "
            "folder in SMDDP_COMMITS, keeps the last commit in a file, from which newcomers go on"
        )
    state._source = places.index((has_most, commits))
    state.sync()
    state._commit_count = commits
    if resumed:
        state.on_reset()
        state.save()


def _go_on(
    failure: Exception, prepare: Callable[[], None], committed: bool, again: bool = False
) -> None:
    """Prepares the state, and joins the job's next epoch; raises the failure if there is none."""
    if not (rendezvous.is_elastic() and reconnect(prepare, again, committed)):
        raise failure


def _train(func: Callable[..., Any], state: State, args: Any, kwargs: Any) -> Any:
    """Calls func until it returns, each time with the ranks that are there."""
    counters, sets, count = len(state._counters), count_sets(), state._ranks.count()
    failed_at = -1  # how many commits there were at the last failure

    def go_back() -> None:
        state.restore()
        state.on_reset()

    has_state = not is_waiting()
    if not has_state:
        reconnect()
    while True:
        begun_at = state._commit_count
        try:
            state._ranks.count_from(count)
            _take_up(state, has_state)
            has_state, begun_at = True, state._commit_count
            result = func(state, *args, **kwargs)
            if basics.is_initialized():
                state._ranks.barrier()  # a rank that fails at the very end still finds the commit
        except HostsUpdatedInterrupt as interrupt:
            forget_sets_from(sets)  # those that func adds anew
            _go_on(interrupt, state.on_reset, state._commit_count > begun_at)
        except Exception as failure:
            # The frameworks' exceptions are of many classes, so the job is asked, not they.
            if not basics.is_initialized() or not basics.is_broken():
                raise
            forget_sets_from(sets)
            # A rank that was only late, say, is not lost; but what fails each time is no accident.
            commits = state._commit_count
            _go_on(failure, go_back, commits > begun_at, again=commits != failed_at)
            failed_at = commits
        else:
            return result
        del state._counters[counters:]  # those of callbacks that func makes anew


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a training, so that it goes on from its last commit when ranks are lost.

    The decorated function takes the state first. When it is called, all ranks get the state of
    rank 0. If a job before has failed, this is its last commit. Then the function is called.

    In an elastic job (``smddprun -np 4 --min-np 2``), ranks may be lost, join or leave. The others
    stay in their processes: they go back to the last commit if a rank was lost, call the state's
    reset callbacks, give the state of one to all ranks, and call the function again. In other jobs,
    and after other errors, an error in the function ends the rank, and so the job, which
    ``smddprun --max-restarts N`` starts again.

    When the function has returned on all ranks, the commit is removed.

    Args:
      func: a function whose first argument is a state, such as KerasState. It has to go on from
        what the state says, and to take everything else that depends on the ranks from hvd.rank()
        and hvd.size() when it is called.

    Returns:
      The decorated function, which returns what func returns.

    Raises:
      TypeError: the first argument of a call is not a state.
      ValueError: the last commit cannot be read, or is of another model; raised on all ranks.
      InitError: too few ranks are left.
      JobError: all ranks that had the state are lost, and only newcomers are left.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(state, State):
            raise TypeError(
                f"{func.__name__}() got {type(state).__name__} first; what is decorated by "
                "elastic.run takes a state first, such as hvd.elastic.ObjectState"
            )
        _warn_if_forgotten(state)
        result = _train(func, state, args, kwargs)
        if basics.is_initialized():
            state._finish()
        return result

    return wrapper
