"""The job: init, shutdown, and who and where this rank is."""

import atexit
import json
import sys

from smddp_tf import _native
from smddp_tf.errors import InitError, NotInitializedError

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


def init(comm=None, process_sets=None) -> None:
    """Connects this process with the other ranks of the job. May be called again; nothing happens.

    Launched by mpirun, the job has its ranks; otherwise it has one, and every collective is the
    identity.

    Args:
      comm: must be None (all ranks).
      process_sets: must be None or empty.

    Raises:
      ValueError: an argument that is not supported.
      InitError: the ranks cannot be connected; the message has the remedy.
    """
    if comm:
        raise ValueError("init(comm=...) is not supported: a job always has all ranks of mpirun")
    if process_sets:
        raise ValueError("init(process_sets=...) is not supported: there is only the global set")
    if _native.core().smddp_init() != 0:
        raise InitError(_native.last_error())
    _install_exit_hooks()


def shutdown() -> None:
    """Leaves the job. Called by itself when the script ends; may be called again."""
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
    import ctypes

    buffer = ctypes.create_string_buffer(4096)
    _native.core().smddp_stats_json(buffer, len(buffer))
    return json.loads(buffer.value)


class ProcessSet:
    """A set of ranks. There is one, the global set."""

    process_set_id = 0

    @property
    def ranks(self) -> list:
        """The ranks of the set, ascending."""
        return list(range(size()))

    def size(self) -> int:
        """The number of ranks in the set."""
        return size()

    def rank(self) -> int:
        """This process's number in the set."""
        return rank()

    def included(self) -> bool:
        """Whether this process is in the set."""
        return True


global_process_set = ProcessSet()


def check_process_set(process_set) -> int:
    """The number of a process set.

    Raises:
      ValueError: it is not the global set.
      NotInitializedError: init() was not called.
    """
    size()
    if process_set is not global_process_set and process_set != 0:
        raise ValueError(f"process set {process_set!r} is not known; only global_process_set is")
    return 0


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
