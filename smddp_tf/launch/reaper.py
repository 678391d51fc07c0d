"""Ends what is left of a job on this machine when smddprun is killed, which then cannot.

A program of its own: `reaper.py JOB GRACE`. It waits for the end of its input, which smddprun
holds. The launcher ends with smddprun, and mostly tells its ranks to; those that still run soon
after get SIGTERM, and those that ignore it are ended GRACE seconds later. They are known by
SMDDP_LAUNCH_JOB in their environment: who their parent is depends on the launcher.
"""

import contextlib
import os
import pathlib
import signal
import sys
import time

VARIABLE = "SMDDP_LAUNCH_JOB"
_LAUNCHER_SECONDS = 2  # for the launcher to end its ranks
_END_SECONDS = 5  # after SIGKILL


def processes_with(*settings: str) -> list:
    """The process ids of this user's processes here that have all these NAME=VALUE."""
    wanted, found = {setting.encode() for setting in settings}, []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            if wanted <= set((process / "environ").read_bytes().split(b"\0")):
                found.append(int(process.name))
    return found


def processes_of(job: str) -> list:
    """The process ids of this user's processes of a job on this machine."""
    return processes_with(f"{VARIABLE}={job}")


def end(job: str, grace: float) -> None:
    """Waits for a job's processes to end; then ends them."""
    for number, seconds in (
        (0, _LAUNCHER_SECONDS),
        (signal.SIGTERM, grace),
        (signal.SIGKILL, _END_SECONDS),
    ):
        deadline = time.monotonic() + seconds
        for process in processes_of(job):
            with contextlib.suppress(OSError):
                os.kill(process, number)
        while processes_of(job):
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    end(sys.argv[1], float(sys.argv[2]))
