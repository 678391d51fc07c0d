"""Joins and leaves the job."""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Sequence
from typing import Any

from smddp_tf._job import agreement, basics, native
from smddp_tf._job.process_sets import (
    USAGE,
    ProcessSet,
    add_process_set,
    added_sets,
    c_ranks,
    raise_for,
    ranks_of,
    wanted_sets,
)
from smddp_tf.errors import InitError

_init_lock = threading.Lock()


_exit_hooks_installed = False


_failed = False


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
        if basics.is_initialized():
            return
        ranks = [] if comm is None else ranks_of(comm)
        wanted = wanted_sets(process_sets)
        *terms, problem = agreement.terms()
        told = [text.encode() for text in (*terms, problem or native.misplaced())]
        code = native.core().smddp_init_job(c_ranks(ranks), len(ranks), *told)
        if code != 0:
            raise (ValueError if code == USAGE else InitError)(native.last_error())
        _install_exit_hooks()
        text = ", ".join(str(process_set.ranks) for process_set in wanted)
        raise_for(native.core().smddp_agree(f"init(process_sets=[{text}])".encode()))
        for process_set in wanted:
            add_process_set(process_set)


def shutdown() -> None:
    """Leaves the job. Called by itself when the script ends; may be called again."""
    for process_set in list(added_sets.values()):
        process_set._invalidate()
    added_sets.clear()
    native.core().smddp_shutdown(int(_failed))
