"""The folder in which Open MPI 5 keeps what it has of a job."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence

_PARAMETER = "prte_tmpdir_base"
_VARIABLE = "PRTE_MCA_" + _PARAMETER


@contextlib.contextmanager
def own_folder(environment: Mapping[str, str], command: Sequence[str]) -> Iterator[Mapping]:
    """Gives mpirun a new folder for that, unless the user has named one; removes it in the end.

    By itself mpirun takes TMPDIR/ompi.PID, and does not start where one of the same process id has
    left that: it was killed, and ids begin at 1 again in a container that was started again, or
    another container that shares the folder has the same.

    Yields the environment for mpirun.

    Raises:
      OSError: there is no folder for temporary files.
    """
    if _VARIABLE in environment or _PARAMETER in command:
        yield environment
        return
    folder = tempfile.mkdtemp(prefix="smddprun.")
    try:
        yield {**environment, _VARIABLE: folder}
    finally:
        # mpirun has removed what is in it, if it could.
        shutil.rmtree(folder, ignore_errors=True)


def remove_of_killed(environment: Mapping[str, str], process: int) -> None:
    """Removes what an mpirun of this process id has left that had no folder of its own.

    Only once it has ended: by a signal, or in good order, when there is nothing left.
    """
    base = environment.get(_VARIABLE) or environment.get("TMPDIR") or tempfile.gettempdir()
    shutil.rmtree(os.path.join(base, f"ompi.{process}"), ignore_errors=True)
