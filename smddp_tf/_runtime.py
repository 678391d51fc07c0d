"""The job: init, shutdown, process sets, and who and where this rank is."""

from __future__ import annotations

import atexit
import ctypes
import json
import operator
import sys
import threading
from collections.abc import Sequence
from typing import Any

from smddp_tf import _agreement, _native
from smddp_tf.errors import InitError, JobError, NotInitializedError

# Of capi/smddp.h.
_USAGE, _MISMATCH, _NOT_INITIALIZED = 1, 2, 6

_init_lock = threading.Lock()
_exit_hooks_installed = False
_failed = False
_added_sets: dict = {}  # number -> ProcessSet, without the global one


def _note_failure(previous):
    """An excepthook that remembers that the script ends by an exception."""

    def hook(kind, value, traceback):
        global _failed
        _failed = True
        previous(kind, value, traceback)

    return hook


def _install_exit_hooks() -> None:
    global _exit_hooks_installed
    if not _exit_hooks_installed:
        _exit_hooks_installed = True
        sys.excepthook = _note_failure(sys.excepthook)
        atexit.register(shutdown)


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Connects this process with the other ranks of the job. May be called again; nothing happens.

    Launched by mpirun, the job has its ranks; otherwise it has one, and every collective is the
    identity.

    Args:
      comm: None: the job has all ranks of mpirun. A list of mpirun's ranks, or an mpi4py
        communicator: the job has these, renumbered from 0 in this order. All ranks that are listed
        give the same list; one that is not listed is a job of its own, of size 1. Ranks may give
        lists without a common rank, to be several jobs.
      process_sets: ProcessSets to add, the same on all ranks, as add_process_set() does. "dynamic"
        is accepted for old scripts: sets can always be added.

    Raises:
      ValueError: an argument that is not understood, or that differs between ranks; on all ranks.
      InitError: the ranks cannot be connected, or were started with settings that cannot be or that
        differ, on all ranks; or other processes were started with this one that cannot be joined.
        The message has the remedy.
    """
    with _init_lock:
        if is_initialized():
            return
        ranks = [] if comm is None else _ranks_of(comm)
        wanted = _wanted_sets(process_sets)
        *terms, problem = _agreement.terms()
        told = [text.encode() for text in (*terms, problem or _native.misplaced())]
        code = _native.core().smddp_init_job(_c_ranks(ranks), len(ranks), *told)
        if code != 0:
            raise (ValueError if code == _USAGE else InitError)(_native.last_error())
        _install_exit_hooks()
        text = ", ".join(str(process_set.ranks) for process_set in wanted)
        _check(_native.core().smddp_agree(f"init(process_sets=[{text}])".encode()))
        for process_set in wanted:
            add_process_set(process_set)


def shutdown() -> None:
    """Leaves the job. Called by itself when the script ends; may be called again."""
    for process_set in list(_added_sets.values()):
        process_set._invalidate()
    _added_sets.clear()
    _native.core().smddp_shutdown(int(_failed))


def is_initialized() -> bool:
    """Whether init() was called, and shutdown() not since."""
    return bool(_native.core().smddp_is_initialized())


def _query(value: int) -> int:
    if value < 0:
        raise NotInitializedError
    return value


def rank() -> int:
    """This process's number in the job, from 0. ValueError before init(), as all below."""
    return _query(_native.core().smddp_rank())


def size() -> int:
    """The number of ranks in the job."""
    return _query(_native.core().smddp_size())


def local_rank() -> int:
    """This process's number among the ranks that share memory with it, from 0."""
    return _query(_native.core().smddp_local_rank())


def local_size() -> int:
    """The number of ranks that share memory with this one, itself included."""
    return _query(_native.core().smddp_local_size())


def cross_rank() -> int:
    """The number of this rank's node, from 0."""
    return _query(_native.core().smddp_cross_rank())


def cross_size() -> int:
    """The number of nodes."""
    return _query(_native.core().smddp_cross_size())


def is_homogeneous() -> bool:
    """Whether every node has as many ranks."""
    return bool(_query(_native.core().smddp_is_homogeneous()))


def stats() -> dict:
    """Counters of this rank: collectives, buckets, their bytes, staging bytes, SIMD level, MPI."""
    buffer = ctypes.create_string_buffer(4096)
    _native.core().smddp_stats_json(buffer, len(buffer))
    return json.loads(buffer.value)


# ---- process sets -------------------------------------------------------------------------------


def _ranks_of(ranks_or_comm) -> list:
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


def _c_ranks(ranks: list):
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
        self.ranks = sorted(_ranks_of(ranks_or_comm))

    def __repr__(self) -> str:
        return f"ProcessSet({self.ranks}, process_set_id={self.process_set_id})"

    def size(self):
        """The number of ranks in the set; None if it is not added."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self):
        """This process's number in the set; None if it is not in it, or the set is not added."""
        return self.ranks.index(rank()) if self.included() else None

    def included(self):
        """Whether this process is in the set; None if it is not added."""
        return None if self.process_set_id is None else rank() in self.ranks

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
        return list(range(size()))

    def size(self) -> int:
        """The number of ranks in the job."""
        return size()

    def rank(self) -> int:
        """This process's number in the job."""
        return rank()

    def included(self) -> bool:
        """Every process is."""
        return size() > 0


global_process_set = _GlobalProcessSet()


def _wanted_sets(process_sets) -> list:
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


def _check(code: int) -> None:
    """Raises what a change of the process sets failed with."""
    if code in (_USAGE, _MISMATCH):
        raise ValueError(_native.last_error())
    if code == _NOT_INITIALIZED:
        raise NotInitializedError
    if code != 0:
        raise JobError(_native.last_error())


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
    add = _native.core().smddp_process_set_add
    _check(add(_c_ranks(ranks), len(ranks), ctypes.byref(number)))
    process_set.process_set_id = number.value
    _added_sets[number.value] = process_set
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
    _check(_native.core().smddp_process_set_remove(number))
    _added_sets.pop(number, None)
    process_set._invalidate()
    return True


def check_process_set(process_set) -> int:
    """The number of a process set that this rank may use.

    Raises:
      ValueError: it is no ProcessSet, was not added, or this rank is not in it.
      NotInitializedError: init() was not called.
    """
    size()
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
            f"rank {rank()} is not in {process_set!r}; only its ranks may use it. Ask "
            "process_set.included() first"
        )
    return process_set.process_set_id


def set_of(process_set_id: int) -> ProcessSet:
    """The set of that number. ValueError: it was removed."""
    process_set = _added_sets.get(process_set_id) if process_set_id else global_process_set
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


# How the library was built, for scripts that ask. MPI and the rest are opened at run time.
def mpi_built() -> bool:
    """MPI can carry bytes between nodes."""
    return True


def mpi_enabled() -> bool:
    """The job was launched by mpirun."""
    return bool(stats().get("mpi", "none") != "none")


def mpi_threads_supported() -> bool:
    """Collectives may be called from any thread."""
    return True


def _never() -> bool:
    """Not part of this library."""
    return False


gloo_built = gloo_enabled = nccl_built = ddl_built = ccl_built = cuda_built = rocm_built = _never
