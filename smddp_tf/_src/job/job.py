"""init() and shutdown()."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from smddp_tf._src.job import agreement, basics, config, native, rendezvous
from smddp_tf._src.job.adding_sets import (
    add_process_sets,
    choose,
    forget_sets_from,
    suspend_sets,
)
from smddp_tf._src.job.bootstrap import Bootstrap, Exchange
from smddp_tf._src.job.enums import Code
from smddp_tf._src.job.process_sets import (
    ProcessSet,
    added_sets,
    c_ranks,
    check_status,
    ranks_of,
    validate_process_sets,
)
from smddp_tf.errors import InitError

_init_lock = threading.RLock()  # reset callbacks, which reconnect() calls, may call init()
_exit_hooks_installed = False
_sets_refused = False  # the job is there, but not the process sets that init() was given
_failed = False
_bootstrap: Bootstrap | None = None  # of init_with(): the core calls its functions


def _first_line(kind: type[BaseException], value: BaseException) -> bytes:
    """An exception's type and the first line of its message."""
    text = str(value).strip().partition("\n")[0]
    return f"{kind.__name__}: {text}".rstrip(": ").encode(errors="replace")


def _note_failure(previous: Any) -> Any:
    """An excepthook that records that the script ends with an exception; shutdown() reports it."""

    def hook(kind: Any, value: Any, traceback: Any) -> None:
        global _failed
        _failed = True
        if basics.is_initialized():
            native.core().smddp_ends_with(_first_line(kind, value))
        previous(kind, value, traceback)

    return hook


def _install_exit_hooks() -> None:
    global _exit_hooks_installed
    if not _exit_hooks_installed:
        _exit_hooks_installed = True
        sys.excepthook = _note_failure(sys.excepthook)
        atexit.register(_end)


def _refuse_child() -> None:
    """Raises InitError in a process that a rank started, as multiprocessing does."""
    if config.parent_rank():
        raise InitError(
            f"this process ({os.getpid()}) was started by a rank of the job (process "
            f"{config.parent_rank()}), so it is none itself and cannot call init(). Call "
            "collectives in the rank; if multiprocessing runs the script again, keep init() and "
            'what follows under `if __name__ == "__main__":`'
        )


@ctypes.CFUNCTYPE(ctypes.c_int)
def _may_interrupt() -> int:
    """Whether SIGINT becomes KeyboardInterrupt, for which a wait in C++ must end."""
    return int(signal.getsignal(signal.SIGINT) is signal.default_int_handler)


@ctypes.CFUNCTYPE(ctypes.c_int)
def _leaves_later() -> int:
    """Whether a process that got SIGTERM goes on until its elastic job lets it leave."""
    return int(rendezvous.connection().leaves_later())


def _terms() -> list[bytes]:
    """What init() compares. A rank that cannot start connects, to report that to the others."""
    *terms, problem = agreement.terms()
    return [text.encode() for text in (*terms, problem or native.misplaced())]


def _check_start(code: int) -> None:
    if code != Code.OK:
        raise (ValueError if code == Code.USAGE else InitError)(native.last_error())


def _refuse_comm(comm: Any) -> None:
    if comm is not None:
        raise ValueError(
            "init(comm=...) is not available in an elastic job, whose ranks come and go; leave it "
            "out, or start the job without --min-np, --max-np and --host-discovery-script"
        )


def _begin_elastic() -> None:
    """Joins the job's first epoch, or waits beside a job that has begun, as a job of one rank."""
    connection = rendezvous.connection()
    native.core().smddp_ask_before_termination(_leaves_later)
    ranks = connection.running()
    if ranks == 0:
        _join_next(lost=False, again=False)
    else:
        _begin_alone(ranks, ranks + 1)


def is_waiting() -> bool:
    """Whether this process has come to an elastic job that trains, and is not one of it yet."""
    return basics.is_expecting()


def _init_with(bootstrap: Bootstrap) -> int:
    """The code with which a job begins, or does not."""
    core, terms = native.core(), _terms()
    return bootstrap.connect(lambda: core.smddp_init_with(ctypes.byref(bootstrap), *terms))


def _begin_alone(rank: int, size: int) -> None:
    """Begins a job of one rank, in which rank() and size() tell what this process will be."""
    bootstrap = rendezvous.connection().bootstrap(rendezvous.Place(size=1))
    _check_start(_init_with(bootstrap))
    basics.expect(rank, size)


def _join_next(
    lost: bool, again: bool, prepare: Callable[[], None] | None = None, committed: bool = False
) -> bool:
    """Joins the elastic job's next epoch; False if there is none, as no rank was lost.

    Args:
      lost: the epoch before had failed.
      again: there is to be a next one even if no rank was lost.
      prepare: called before the ranks connect, once this one's new place is known. Its collectives
        are those of one rank, as not all others may call the same.
      committed: this rank has committed since the epoch began.

    A rank that is lost while the ranks connect leads to yet another epoch.

    Raises:
      InitError: the job is over, or this rank cannot start.
      SystemExit: this rank is to leave the job.
    """
    connection = rendezvous.connection()
    while True:
        place = connection.next(lost, again, committed)
        if place.leaves:
            raise SystemExit(0)
        if not place.epoch:
            return False
        if prepare is not None:
            _begin_alone(place.rank, place.size)
            prepare()
            _leave(failed=False)
        bootstrap = connection.bootstrap(place)
        code = _init_with(bootstrap)
        if code != Code.REMOTE or not connection.is_void(seconds=0):
            _check_start(code)
            return True
        lost = True


def reconnect(
    prepare: Callable[[], None] | None = None, again: bool = False, committed: bool = False
) -> bool:
    """Leaves the elastic job's epoch, and goes on with the ranks of the next.

    Args:
      prepare: called once this rank's new place is known, as a job of one rank.
      again: go on even if no rank was lost, with the same ones.
      committed: this rank has committed since the epoch began.

    Returns:
      Whether there is a next one. If not, no rank was lost, and this rank is in no job any more.

    Raises:
      InitError: the job is over, or this rank cannot start.
      SystemExit: this rank is to leave the job.
    """
    with _init_lock:
        lost = basics.is_initialized() and basics.is_broken()
        _leave(failed=False)
        if not _join_next(lost, again, prepare, committed):
            return False
        config.mark_rank()
        native.core().smddp_ask_before_interrupts(_may_interrupt)
        return True


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Connects this process to the other ranks of the job. Further calls have no effect.

    Under mpirun the job consists of its ranks. Otherwise the job has one rank, and every
    collective is the identity. A further call warns if it has arguments.

    Args:
      comm: None: the job has all of mpirun's ranks. A list of mpirun's ranks, or an mpi4py
        communicator: the job has these ranks, renumbered from 0 in the given order. All listed
        ranks must pass the same list; a rank that is not listed forms a job of size 1. Passing
        disjoint lists splits the ranks into several jobs.
      process_sets: ProcessSets to add with add_process_set(); the same on all ranks. "dynamic" is
        ignored, accepted for compatibility: sets can always be added.

    Raises:
      ValueError: an argument is invalid, or differs between ranks; raised on all ranks. If sets
        were refused, the job is there without any, and a further call may give others.
      InitError: the ranks cannot be connected, or their settings are invalid or differ (raised on
        all ranks); or the launcher started further processes that cannot be joined; or a rank
        started this process. The message includes the remedy.

    Examples:
      >>> hvd.init()
      >>> 0 <= hvd.rank() < hvd.size()
      True
    """
    with _init_lock:
        if basics.is_initialized():
            if _sets_refused and process_sets not in (None, "dynamic"):
                _add_sets(validate_process_sets(process_sets))
            elif comm is not None or process_sets not in (None, "dynamic"):
                warnings.warn(
                    "init() was called before, so its arguments have no effect now; "
                    "add_process_set() adds sets",
                    RuntimeWarning,
                    stacklevel=2,
                )
            return

        ranks = [] if comm is None else ranks_of(comm)
        wanted = validate_process_sets(process_sets)
        _refuse_child()

        if rendezvous.is_elastic():
            _refuse_comm(comm)
            _begin_elastic()
        else:
            code = native.core().smddp_init_job(c_ranks(ranks), len(ranks), *_terms())
            _check_start(code)
            choose(comm, ranks)
        _begun(has_peers=basics.mpi_enabled() or rendezvous.is_elastic())
        _add_sets(wanted)


def _add_sets(wanted: list[ProcessSet]) -> None:
    """Adds the sets that init() was given. If it raises, init() may be given others."""
    global _sets_refused
    _sets_refused = True
    if not rendezvous.is_elastic():
        text = ", ".join(
            str(one.ranks) if one.mpi_comm is None else "a communicator" for one in wanted
        )
        check_status(native.core().smddp_agree(f"init(process_sets=[{text}])".encode()))
    add_process_sets(wanted)
    _sets_refused = False


def init_with(rank: int, size: int, exchange: Exchange) -> None:
    """init() of ranks that find each other without MPI.

    Raises:
      InitError: the ranks cannot be connected, or their settings are invalid or differ.
    """
    global _bootstrap
    with _init_lock:
        if basics.is_initialized():
            return
        _refuse_child()
        _bootstrap = Bootstrap(rank, size, exchange)
        _check_start(_init_with(_bootstrap))
        _begun(has_peers=True)


def _begun(has_peers: bool) -> None:
    if has_peers:
        config.mark_rank()
    _install_exit_hooks()
    native.core().smddp_ask_before_interrupts(_may_interrupt)


def shutdown() -> None:
    """Leaves the job. Runs automatically at exit; further calls have no effect.

    init() can begin another job in the process, any number of times: of one rank; or of any of
    mpirun's ranks, if mpi4py began MPI before the first init(). What was traced stays right: it
    reduces over the ranks of the job in which it runs.

    Examples:
      >>> hvd.shutdown()
      >>> hvd.is_initialized()
      False
    """
    _leave(_failed)
    native.core().smddp_ask_before_termination(None)
    forget_sets_from(0)


def _leave(failed: bool) -> None:
    basics.expect(None)
    for process_set in list(added_sets.values()):
        process_set._invalidate()
    added_sets.clear()
    suspend_sets()
    native.core().smddp_shutdown(int(failed))
    native.core().smddp_ask_before_interrupts(None)
    config.unmark_rank()


def _end() -> None:
    """Runs as the process ends."""
    shutdown()
    if rendezvous.is_elastic():
        # A process that has trained may take seconds to end; the others need not wait for it.
        rendezvous.connection().finish(well=not _failed)
