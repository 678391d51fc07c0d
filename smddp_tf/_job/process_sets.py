"""Process sets: some ranks of the job, which run collectives apart from the others."""

from __future__ import annotations

import ctypes
import operator
from typing import Any

from smddp_tf._job import basics, native
from smddp_tf.errors import JobError, NotInitializedError

# Of capi/smddp.h.
USAGE, _MISMATCH, _NOT_INITIALIZED = 1, 2, 6


added_sets: dict = {}  # number -> ProcessSet, without the global one


def ranks_of(ranks_or_comm) -> list:
    """The ranks of a list or of an mpi4py communicator, in their order."""
    if hasattr(ranks_or_comm, "Get_group"):
        from mpi4py import MPI  # it is there, for this is one of its objects

        group, world = ranks_or_comm.Get_group(), MPI.COMM_WORLD.Get_group()
        return list(MPI.Group.Translate_ranks(group, list(range(group.size)), world))
    try:
        return [operator.index(one) for one in ranks_or_comm]
    except TypeError:
        raise ValueError(
            f"{ranks_or_comm!r} is neither a list of ranks nor an mpi4py communicator"
        ) from None


def c_ranks(ranks: list):
    return (ctypes.c_int32 * len(ranks))(*ranks)


class ProcessSet:
    """Some ranks of the job, which run collectives apart from the others.

    Give it to init() or add_process_set(), and then to collectives as process_set=. A rank may be
    in several sets; sets do not wait for each other.

    Args:
      ranks_or_comm: ranks of the job, in any order, or an mpi4py communicator.

    Attributes:
      ranks: the ranks, ascending; None after the set was removed.
      process_set_id: its number; None until it is added, and after it was removed.

    Raises:
      ValueError: the argument is neither.
    """

    process_set_id = None
    ranks = None

    def __init__(self, ranks_or_comm: Any) -> None:
        self.ranks = sorted(ranks_of(ranks_or_comm))

    def __repr__(self) -> str:
        return f"ProcessSet({self.ranks}, process_set_id={self.process_set_id})"

    def size(self):
        """The number of ranks in the set; None if it is not added."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self):
        """This process's number in the set; None if it is not in it, or the set is not added."""
        return self.ranks.index(basics.rank()) if self.included() else None

    def included(self):
        """Whether this process is in the set; None if it is not added."""
        return None if self.process_set_id is None else basics.rank() in self.ranks

    def _invalidate(self) -> None:
        self.process_set_id = self.ranks = None


class _GlobalProcessSet(ProcessSet):
    """All ranks of the job. Its functions raise ValueError before init()."""

    process_set_id = 0

    def __init__(self) -> None:
        """Its ranks are known after init()."""

    def __repr__(self) -> str:
        return "global_process_set"

    @property
    def ranks(self) -> list:
        """The ranks of the job."""
        return list(range(basics.size()))

    def size(self) -> int:
        """The number of ranks in the job."""
        return basics.size()

    def rank(self) -> int:
        """This process's number in the job."""
        return basics.rank()

    def included(self) -> bool:
        """Every process is."""
        return basics.size() > 0


global_process_set = _GlobalProcessSet()


def wanted_sets(process_sets) -> list:
    """The argument of init(), checked before anything is sent."""
    if process_sets is None or process_sets == "dynamic":
        return []
    wanted = [process_sets] if isinstance(process_sets, (str, ProcessSet)) else list(process_sets)
    for one in wanted:
        if not isinstance(one, ProcessSet) or one.process_set_id is not None:
            raise ValueError(
                f"init(process_sets=...) takes a list of new ProcessSets, or 'dynamic'; not {one!r}"
            )
    return wanted


def raise_for(code: int) -> None:
    """Raises what a change of the process sets failed with."""
    if code in (USAGE, _MISMATCH):
        raise ValueError(native.last_error())
    if code == _NOT_INITIALIZED:
        raise NotInitializedError
    if code != 0:
        raise JobError(native.last_error())


def add_process_set(process_set: ProcessSet) -> ProcessSet:
    """Adds a process set to the job. Every rank of the job calls it, in the set or not.

    Takes staging memory on the ranks of the set, until it is removed (stats()["staging_bytes"]).

    Args:
      process_set: a ProcessSet, or a list of ranks; the same on all ranks.

    Returns:
      The ProcessSet; collectives take it now.

    Raises:
      ValueError: the ranks of the job give different lists; the list is empty, has a rank twice or
        one that does not exist; a set of the same ranks exists. On all ranks.
      JobError: a rank died or did not come.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.process_set_id is not None:
        raise ValueError(f"{process_set!r} is in the job already")
    if process_set.ranks is None:
        raise ValueError("this ProcessSet was removed; make a new one")
    number = ctypes.c_int()
    ranks = process_set.ranks
    add = native.core().smddp_process_set_add
    raise_for(add(c_ranks(ranks), len(ranks), ctypes.byref(number)))
    process_set.process_set_id = number.value
    added_sets[number.value] = process_set
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a process set and frees its memory. Every rank of the job calls it.

    Args:
      process_set: one that was added; it cannot be used any more.

    Returns:
      True; False for the global set and for a set that is not in the job.

    Raises:
      ValueError: the ranks give different sets, or one has a collective under way in it. On all
        ranks; the set stays.
      JobError: a rank died or did not come.
    """
    if not isinstance(process_set, ProcessSet):
        raise ValueError(f"process_set={process_set!r} is not a ProcessSet")  # noqa: TRY004
    number = process_set.process_set_id
    if number in (None, 0):
        return False
    raise_for(native.core().smddp_process_set_remove(number))
    added_sets.pop(number, None)
    process_set._invalidate()
    return True


def check_process_set(process_set) -> int:
    """The number of a process set that this rank may use.

    Raises:
      ValueError: it is no ProcessSet, was not added, or this rank is not in it.
      NotInitializedError: init() was not called.
    """
    basics.size()
    if not isinstance(process_set, ProcessSet):
        raise ValueError(  # noqa: TRY004
            f"process_set={process_set!r} is not a ProcessSet, as add_process_set([0, 1]) returns "
            "one; without process_set= all ranks take part"
        )
    if process_set.process_set_id is None:
        raise ValueError(
            f"{process_set!r} is not in the job: it was removed, or never given to "
            "init(process_sets=...) or add_process_set()"
        )
    if not process_set.included():
        raise ValueError(
            f"rank {basics.rank()} is not in {process_set!r}; only its ranks may use it. Ask "
            "process_set.included() first"
        )
    return process_set.process_set_id


def set_of(process_set_id: int) -> ProcessSet:
    """The set of that number. ValueError: it was removed."""
    process_set = added_sets.get(process_set_id) if process_set_id else global_process_set
    if process_set is None:
        raise ValueError(f"process set {process_set_id} was removed")
    return process_set


def rank_in(process_set_id: int) -> int:
    """This process's number in the set of that number.

    Raises:
      ValueError: the set was removed.
    """
    return set_of(process_set_id).rank()


def size_of(process_set_id: int) -> int:
    """The number of ranks in the set of that number.

    Raises:
      ValueError: the set was removed.
    """
    return set_of(process_set_id).size()
