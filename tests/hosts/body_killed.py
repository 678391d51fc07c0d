"""What a rank does in test_a_killed_rank: sums without end, until one of the ranks is killed.

    body_killed.py VICTIM FOLDER [join]

With `join` all ranks but the last wait in join(), while that one is busy for BUSY_SECONDS.

Each rank writes to FOLDER: how it was told to send messages (messages*), what it prints to stderr
(err*), when it was killed or told (at*), and the sentence it was told (text*). The ranks of a
machine share one monotonic clock.
"""

import os
import pathlib
import signal
import sys
import threading
import time

import core as c
import numpy as np

COUNT = 500_000
SECONDS = 30  # of work, if nobody is killed
BUSY_SECONDS = 6


def sums(core, die_after):
    want = np.full(COUNT, core.size * (core.size + 1) // 2, np.float32)
    end = time.monotonic() + SECONDS
    step = 0
    while time.monotonic() < end:
        step += 1
        if step == 3:
            die_after(0.05)  # while collectives are under way
        got = core.allreduce(np.full(COUNT, core.rank + 1, np.float32), name=f"sum{step}")
        if not np.array_equal(got, want):
            raise AssertionError(f"step {step}: {got[:3]}, not {want[:3]}")


def join(core, die_after):
    core.barrier()
    die_after(0.5)
    if core.rank == core.size - 1:
        time.sleep(BUSY_SECONDS)
    core.join()


def main():
    victim, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
    work = join if sys.argv[3:] == ["join"] else sums
    core = c.Core()
    # mpirun drops what ranks print after one was killed.
    os.dup2(os.open(folder / f"err{core.rank}", os.O_WRONLY | os.O_CREAT, 0o644), 2)

    def note(kind, text):
        (folder / f"{kind}{core.rank}").write_text(text)

    note("messages", os.environ.get("OMPI_MCA_pml", ""))

    def die():
        note("at", repr(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)

    def die_after(seconds):
        if core.rank == victim:
            threading.Timer(seconds, die).start()

    try:
        work(core, die_after)
    except c.CoreError as error:
        note("at", repr(time.monotonic()))
        note("text", str(error))
        core.shutdown(failed=True)
        return 1
    return "nobody was killed"


if __name__ == "__main__":
    sys.exit(main())
