"""What the processes of one test session share: a folder, what the first to ask makes, and silence.

`pytest -n 2` runs tests in two worker processes, which pytest's own process starts; the session is
its, and ends with it.
"""

import atexit
import contextlib
import fcntl
import hashlib
import os
import pathlib
import shutil
import tempfile

VARIABLE = "TEST_SESSION"


def session() -> tuple:
    """The process id of the session's first process, and the session's folder."""
    if VARIABLE not in os.environ:
        made = tempfile.mkdtemp(prefix="tests")
        atexit.register(shutil.rmtree, made, ignore_errors=True)
        os.environ[VARIABLE] = f"{os.getpid()} {made}"
    pid, folder = os.environ[VARIABLE].split(" ", 1)
    return int(pid), pathlib.Path(folder)


def name_of(kind: str, *what) -> str:
    """A file's name for what there is one of for each `what`."""
    return f"{kind}-{hashlib.sha256(repr(what).encode()).hexdigest()[:12]}"


@contextlib.contextmanager
def locked(name: str):
    """One process at a time; gives the path of this name in the session's folder."""
    path = session()[1] / name
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield path


def once(name: str, make) -> str:
    """What make() returned to the first process that asked."""
    with locked(name) as path:
        if not path.exists():
            path.write_text(make())
        return path.read_text()


@contextlib.contextmanager
def among_others(alone: bool):
    """While this lasts, other processes run tests too; or none does, if this one is to be alone."""
    folder = session()[1]
    with open(folder / "next", "w") as next_one, open(folder / "running", "w") as running:
        # Who waits to be alone holds up the others, or their turns would never end.
        fcntl.flock(next_one, fcntl.LOCK_EX)
        fcntl.flock(running, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(next_one, fcntl.LOCK_UN)
        yield
