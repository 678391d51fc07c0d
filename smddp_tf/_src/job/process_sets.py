"""Process sets: subsets of the job's ranks that run their own collectives."""

from __future__ import annotations

import ctypes
import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

from smddp_tf._src.job import basics, native
from smddp_tf._src.job.enums import Code
from smddp_tf.errors import JobError, NotInitializedError

added_sets: dict[int, ProcessSet] = {}  # by process_set_id, without the global one


def is_communicator(ranks_or_comm: Any) -> bool:
    """Whether it is one of mpi4py's."""
    return hasattr(ranks_or_comm, "Get_group")


def ranks_of(ranks_or_comm: Any) -> list[int]:
    """The ranks of a list or an mpi4py communicator, in the given order.

    A communicator's are those that mpirun started; MPI.COMM_NULL has none.
    """
    if is_communicator(ranks_or_comm):
        from mpi4py import MPI  # installed, since the argument is one of its objects

        if ranks_or_comm == MPI.COMM_NULL:
            return []
        group, world = ranks_or_comm.Get_group(), MPI.COMM_WORLD.Get_group()
        return list(MPI.Group.Translate_ranks(group, list(range(group.size)), world))
    try:
        return [operator.index(one) for one in ranks_or_comm]
    except TypeError:
        raise ValueError(
            f"{ranks_or_comm!r} is neither a list of ranks nor an mpi4py communicator"
        ) from None


def c_ranks(ranks: list[int]) -> Any:
    return (ctypes.c_int32 * len(ranks))(*ranks)


class ProcessSet:
    """A subset of the job's ranks that runs its own collectives.

    Register it with init() or add_process_set(), then pass it to collectives as process_set=. A
    rank may be a member of several sets; sets never wait for each other.

    Args:
      ranks_or_comm: ranks of the job, in any order, or an mpi4py communicator. The ranks may pass
        the parts that MPI's Split() makes, each its own; MPI.COMM_NULL where a rank is in none.

    Attributes:
      ranks: the ranks, in ascending order; None once the set is removed.
      process_set_id: the set's number in the job; None until it is added and once it is removed.
      mpi_comm: the communicator, or None.

    Raises:
      ValueError: the argument is neither a list of ranks nor a communicator.

    Examples:
      >>> first = hvd.ProcessSet([0])
      >>> first.ranks
      [0]
      >>> first.process_set_id is None  # until it is added
      True
    """

    process_set_id: int | None = None
    ranks: Any = None  # a list once it is added; None would make every use of it a check
    mpi_comm: Any = None
    _why_not = ""  # why it is not in the job, if that is known

    def __init__(self, ranks_or_comm: Any) -> None:
        self.ranks = sorted(ranks_of(ranks_or_comm))
        if is_communicator(ranks_or_comm):
            self.mpi_comm = ranks_or_comm

    def __repr__(self) -> str:
        return f"ProcessSet({self.ranks}, process_set_id={self.process_set_id})"

    def size(self) -> int | None:
        """The number of ranks in the set; None if the set is not in the job."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self) -> int | None:
        """This process's rank in the set; None for non-members or if the set is not in the job."""
        return self.ranks.index(basics.rank()) if self.included() else None

    def included(self) -> bool | None:
        """Whether this process is a member; None if the set is not in the job."""
        return None if self.process_set_id is None else basics.rank() in self.ranks

    def _bind(self, number: int, ranks: list[int]) -> None:
        self.process_set_id, self.ranks, self._why_not = number, ranks, ""
        added_sets[number] = self

    def _invalidate(self, why: str = "") -> None:
        self.process_set_id = self.ranks = None
        self._why_not = why


class _GlobalProcessSet(ProcessSet):
    """All ranks of the job. Its methods raise ValueError before init().

    Examples:
      >>> hvd.global_process_set.size() == hvd.size()
      True
      >>> hvd.global_process_set.included()
      True
    """

    process_set_id = 0

    def __init__(self) -> None:
        """Takes no ranks: they are known only after init()."""

    def __repr__(self) -> str:
        return "global_process_set"

    @property
    def ranks(self) -> list[int]:
        """The ranks of the job."""
        return list(range(basics.size()))

    def size(self) -> int:
        """The number of ranks in the job."""
        return basics.size()

    def rank(self) -> int:
        """This process's rank in the job."""
        return basics.rank()

    def included(self) -> bool:
        """Always True; raises ValueError before init()."""
        return basics.size() > 0


global_process_set = _GlobalProcessSet()


def validate_process_sets(process_sets: Any) -> list[ProcessSet]:
    """Validates init()'s process_sets before any communication and returns it as a list."""
    if process_sets is None or process_sets == "dynamic":
        return []
    alone = isinstance(process_sets, (str, ProcessSet))
    wanted: list[Any] = [process_sets] if alone else list(process_sets)
    for one in wanted:
        if not isinstance(one, ProcessSet) or one.process_set_id is not None:
            raise ValueError(
                f"init(process_sets=...) takes a list of new ProcessSets, or 'dynamic'; not {one!r}"
            )
    return wanted


def check_status(code: int) -> None:
    """Raises the exception for a C API status code; does nothing for success."""
    if code in (Code.USAGE, Code.MISMATCH):
        raise ValueError(native.last_error())
    if code == Code.NOT_INITIALIZED:
        raise NotInitializedError
    if code != Code.OK:
        raise JobError(native.last_error())


@dataclasses.dataclass(frozen=True)
class ProcessGroup:
    """The ranks of a collective, as one of them sees them: a process set that is in the job.

    Ops and gradients pass it on; only the C API, and the attributes of TensorFlow's ops, take the
    id.
    """

    id: int
    rank: int  # this process's, in the group
    ranks: Sequence[int]  # their numbers in the job, ascending
    fixed: bool = True  # it has these ranks for as long as it exists

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)


def require_process_set(process_set: Any) -> None:
    """Rejects what is not a ProcessSet, in the job or not.

    Raises:
      ValueError: process_set is not a ProcessSet.
    """
    if not isinstance(process_set, ProcessSet):
        raise ValueError(  # noqa: TRY004
            f"process_set={process_set!r} is not a ProcessSet, as add_process_set([0, 1]) returns "
            "one; without process_set= all ranks take part"
        )


def is_outside(process_set: Any) -> bool:
    """Whether a set of the job leaves out this rank, whose gradients then stay its own.

    Other collectives refuse the rank. With Horovod, too, tape and optimizers do not.
    """
    return isinstance(process_set, ProcessSet) and process_set.included() is False


def check_process_set(process_set: Any) -> ProcessGroup:
    """Checks that this rank may use a process set, and returns its group.

    Raises:
      ValueError: it is not a ProcessSet, is not in the job, or does not include this rank.
      NotInitializedError: init() was not called.
    """
    rank, ranks = basics.connected()
    if process_set is global_process_set:
        return ProcessGroup(0, rank, range(ranks), basics.is_last_job())
    require_process_set(process_set)
    if process_set.process_set_id is None:
        raise ValueError(
            process_set._why_not
            or f"{process_set!r} is not in the job: it was removed, or never given to "
            "init(process_sets=...) or add_process_set()"
        )
    if not process_set.included():
        raise ValueError(
            f"rank {basics.rank()} is not in {process_set!r}; only its ranks may use it. Ask "
            "process_set.included() first"
        )
    return ProcessGroup(process_set.process_set_id, process_set.rank(), tuple(process_set.ranks))


def set_of(process_set_id: int) -> ProcessSet:
    """The process set with this id.

    Raises:
      ValueError: the set was removed.
    """
    process_set = added_sets.get(process_set_id) if process_set_id else global_process_set
    if process_set is None:
        raise ValueError(f"process set {process_set_id} was removed")
    return process_set


def group_of(process_set_id: int) -> ProcessGroup:
    """The group of the process set with this id, which an op in a graph has as an attribute.

    Raises:
      ValueError: the set was removed, or does not include this rank.
      NotInitializedError: init() was not called.
    """
    return check_process_set(set_of(process_set_id))
