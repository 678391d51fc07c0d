"""add_process_set(), remove_process_set(); the sets of an elastic job, which outlive its epochs.

Ranks get new numbers when others come or leave, but a slot's number is never used again. So a set
is known by its slots here. When the ranks of a new epoch are connected, the sets whose members all
live are made again, with the number that they had: graphs have it, and go on. The others are lost.

A newcomer's script adds the same sets in the same order, before it is let in. Its sets become those
of the others then; it is in none of them.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from typing import Any

from smddp_tf._src.job import basics, native, rendezvous
from smddp_tf._src.job.bootstrap import Bootstrap, Exchange
from smddp_tf._src.job.process_sets import (
    ProcessSet,
    added_sets,
    c_ranks,
    check_status,
    global_process_set,
    is_communicator,
)
from smddp_tf._src.job.reduce_op import ReduceOp

_INT64 = 9  # SMDDP_INT64
_IN_NONE, _OUTSIDE = -1, -2  # what a rank tells of its communicator instead of the lowest rank

_chosen: list[int] = []  # those of mpirun's ranks that init() was given as the job's


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Adds a process set to the job. Collective over the job: ranks outside the set call it too.

    The ranks of the set allocate staging memory for it until it is removed
    (stats()["staging_bytes"]).

    Args:
      process_set: a ProcessSet or a list of ranks; the same on all ranks. A ProcessSet of an mpi4py
        communicator may be another one on other ranks, as Split() makes them: the sets of all ranks
        are added.

    Returns:
      The ProcessSet, ready to be passed to collectives.

    In an elastic job, sets that were added before elastic.run are made again after each change of
    the ranks, as the same objects, while all their members live.

    Raises:
      ValueError: the ranks pass different lists; the list is empty, repeats a rank or contains one
        that does not exist; a set of the same ranks exists. Raised on all ranks. Of several
        communicators, those before the refused one stay added.
      JobError: a rank died or timed out.

    Examples:
      >>> first = hvd.add_process_set([0])  # every rank calls it, in the set or not
      >>> if first.included():
      ...     total = hvd.allreduce(1.0, op=hvd.Sum, process_set=first)
      >>> hvd.remove_process_set(first)
      True
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.process_set_id is not None:
        raise ValueError(f"{process_set!r} is in the job already")
    if process_set.ranks is None:
        raise ValueError("this ProcessSet was removed; make a new one")
    if process_set.mpi_comm is not None and not rendezvous.is_elastic():
        _add_parts(process_set)
        return process_set
    if not _is_newcomer():
        _add(process_set, process_set.ranks)
    _keep(process_set)
    return process_set


def add_process_sets(process_sets: list[ProcessSet]) -> None:
    """Adds all of these sets, or, if it raises ValueError, none."""
    before = set(added_sets)
    try:
        for one in process_sets:
            add_process_set(one)
    except ValueError:
        for number in sorted(set(added_sets) - before):
            one = added_sets[number]
            ranks = one.ranks
            remove_process_set(one)
            one.ranks = ranks  # it may be added again
        raise


def _add(process_set: ProcessSet, ranks: list[int]) -> None:
    """Adds one set, which all ranks know."""
    number = ctypes.c_int()
    add = native.core().smddp_process_set_add
    check_status(add(c_ranks(ranks), len(ranks), ctypes.byref(number)))
    process_set._bind(number.value, ranks)


def add_by_members(ranks: Sequence[int], exchange: Exchange, limit: float) -> int:
    """Adds a set without its ProcessSet; other ranks of the job neither call this nor know of it.

    Args:
      ranks: of the job, in ascending order, this one among them.
      exchange: connects them, in this order.
      limit: for how long to wait for the others, in seconds; 0 for SMDDP_TIMEOUT_SECONDS.

    Returns:
      The set's number, which this rank gives back to leave_set().

    Raises:
      JobError: a rank died or made another set, or the limit has passed: this ends the job. Or a
        rank could not map the set's memory: then none of them has the set.
    """
    number = ctypes.c_int()
    rank = basics.rank()
    members = Bootstrap(list(ranks).index(rank), len(ranks), exchange, rank)
    add = native.core().smddp_process_set_add_by_members
    count, seconds = len(ranks), ctypes.c_double(limit)
    code = members.connect(
        lambda: add(
            c_ranks(list(ranks)), count, ctypes.byref(members), seconds, ctypes.byref(number)
        )
    )
    check_status(code)
    return number.value


def leave_set(number: int) -> None:
    """Gives back a set that members added; the next one of the same ranks may be it again."""
    native.core().smddp_process_set_leave(number)


def _add_parts(process_set: ProcessSet) -> None:
    """Adds the sets of all ranks' communicators, in the order of their lowest ranks.

    A communicator has the rank that holds it, so each rank tells the others the lowest of its own.
    """
    size, rank = basics.size(), basics.rank()
    own = _job_ranks(process_set.ranks)
    told, heard = (ctypes.c_int64 * size)(), (ctypes.c_int64 * size)()
    told[rank] = _OUTSIDE if own is None else min(own, default=_IN_NONE)
    factor, name = ctypes.c_double(1.0), b"add_process_set(ProcessSet(communicator))"
    allreduce = native.core().smddp_allreduce
    # The others' places are zeros.
    count = ctypes.c_int64(size)
    check_status(allreduce(told, heard, count, _INT64, int(ReduceOp.Sum), factor, factor, name))
    lowest = list(heard)
    if _OUTSIDE in lowest:
        raise ValueError(
            f"the communicator that rank {lowest.index(_OUTSIDE)} gives to ProcessSet() has ranks "
            "that are not in the job"
        )
    for first in sorted(set(lowest) - {_IN_NONE}):
        ranks = [one for one in range(size) if lowest[one] == first]
        _add(process_set if rank in ranks else ProcessSet(ranks), ranks)


def _job_ranks(ranks: list[int]) -> list[int] | None:
    """The numbers in the job of ranks that mpirun started; None: some are not in it."""
    chosen = _chosen or list(range(basics.size()))
    return [chosen.index(one) for one in ranks] if set(ranks) <= set(chosen) else None


def choose(comm: Any, ranks: list[int]) -> None:
    """init() was given comm, these of mpirun's ranks, as the job; none: it was given nothing."""
    _chosen[:] = ranks
    global_process_set.mpi_comm = comm if is_communicator(comm) else None


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a process set and frees its memory. Collective over the job.

    Args:
      process_set: a set that was added; it cannot be used afterwards.

    Returns:
      True; False for the global set and for a set that is not in the job.

    Raises:
      ValueError: the ranks pass different sets, or some rank has a pending collective in the set.
        Raised on all ranks; the set is kept.
      JobError: a rank died or timed out.

    Examples:
      >>> first = hvd.add_process_set([0])
      >>> hvd.remove_process_set(first)
      True
      >>> hvd.remove_process_set(hvd.global_process_set)  # always stays
      False
    """
    if not isinstance(process_set, ProcessSet):
        raise ValueError(f"process_set={process_set!r} is not a ProcessSet")  # noqa: TRY004
    number = process_set.process_set_id
    if number in (None, 0):
        return _forget(process_set)
    check_status(native.core().smddp_process_set_remove(number))
    added_sets.pop(number, None)
    process_set._invalidate()
    _forget(process_set)
    return True


# ---- in elastic jobs ----------------------------------------------------------------------------


@dataclasses.dataclass
class _Kept:
    """A set that this process has added.

    Attributes:
      process_set: the object that the script has.
      number: of the set; 0: this process was not let in yet when it was added.
      slots: its members.
      ranks: their numbers when it was last in the job.
    """

    process_set: ProcessSet
    number: int = 0
    slots: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()


_Row = tuple[int, tuple[int, ...], tuple[int, ...]]  # the same, without the object
_kept: list[_Kept | None] = []  # in the order in which they were added; None: was removed since


def _is_newcomer() -> bool:
    """Whether this process has come to an elastic job and was not let in yet."""
    return rendezvous.is_elastic() and rendezvous.connection().place.epoch == 0


def _keep(process_set: ProcessSet) -> None:
    """Keeps a set that was added; for a newcomer, until it is let in."""
    if _is_newcomer():
        process_set._why_not = (
            f"{process_set!r} is made when elastic.run has let this process into the job, which "
            "trains without it; until then it is alone. Ask process_set.included() first"
        )
        _kept.append(_Kept(process_set))
    elif rendezvous.is_elastic():
        members = rendezvous.connection().place.slots
        slots = tuple(members[rank] for rank in process_set.ranks)
        ranks = tuple(process_set.ranks)
        _kept.append(_Kept(process_set, process_set.process_set_id or 0, slots, ranks))


def _forget(process_set: ProcessSet) -> bool:
    """A set was removed; returns whether it was kept."""
    for place, one in enumerate(_kept):
        if one is not None and one.process_set is process_set:
            _kept[place] = None
            return True
    return False


def count_sets() -> int:
    """How many were added."""
    return len(_kept)


def forget_sets_from(first: int) -> None:
    """Forgets those that were added after so many: they end with their epoch."""
    del _kept[first:]


def suspend_sets() -> None:
    """The epoch has ended, and the sets with it; those that were kept may be made again."""
    for one in filter(None, _kept):
        if one.number:
            one.process_set._why_not = (
                f"process set {list(one.ranks)} may be made again by elastic.run, when the "
                "ranks are connected; reset callbacks run before"
            )


def sets_table() -> list[_Row | None]:
    """What others need to know of each set."""
    return [None if one is None else (one.number, one.slots, one.ranks) for one in _kept]


def make_sets_again(tables: Sequence[list[_Row | None]]) -> None:
    """Makes the sets whose members all live. Collective over the job's ranks.

    Args:
      tables: of all ranks, in their order.

    Raises:
      JobError: a rank died or timed out.
    """
    members = rendezvous.connection().place.slots
    for place in range(max(map(len, tables), default=0)):
        if place == len(_kept):  # the script of this newcomer has added fewer
            _kept.append(_Kept(ProcessSet([])))
        rows = [table[place] for table in tables if place < len(table)]
        # Newcomers know no number.
        known = next((row for row in rows if row is not None and row[0]), None)
        own = _kept[place] or _Kept(ProcessSet([]))
        if known is None:
            own.process_set._invalidate(_ended("this process set", "its ranks"))
        else:
            _renew(own, *known, members)
            _kept[place] = own


def _renew(
    own: _Kept,
    number: int,
    slots: tuple[int, ...],
    ranks: tuple[int, ...],
    members: tuple[int, ...],
) -> None:
    """Makes a set again if its slots are among the members of the epoch."""
    gone = [rank for rank, slot in zip(ranks, slots, strict=True) if slot not in members]
    if gone:
        who = f"rank{'s' * (len(gone) > 1)} {', '.join(map(str, gone))} of it"
        own.process_set._invalidate(_ended(f"process set {list(ranks)}", who))
    elif number not in added_sets:
        new = sorted(members.index(slot) for slot in slots)
        check_status(native.core().smddp_process_set_add_again(c_ranks(new), len(new), number))
        own.process_set._bind(number, new)
        ranks = tuple(new)
    own.number, own.slots, own.ranks = number, slots, ranks


def _ended(what: str, who: str) -> str:
    return (
        f"{what} has ended: {who} left the job, or was lost. Add another with add_process_set() in "
        "the function that elastic.run decorates, of ranks that are there"
    )
