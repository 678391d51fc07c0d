"""smddprun that ends its job when the process that started it has gone: run() calls it.

Its standard input is a pipe that this process holds. The end of it, in whatever way the process
ends, is SIGTERM to smddprun.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from smddp_tf.launch import __main__ as smddprun


def no_input() -> None:
    """Standard input is at its end from now on."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def _end_with(holder: int) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the main thread's
    while os.read(holder, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """Runs the command line of smddprun, and returns its exit code."""
    # While smddprun waits for the job it takes signals itself; else it still has to tidy up.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    holder = os.dup(0)
    no_input()
    threading.Thread(target=_end_with, args=[holder], daemon=True).start()
    return smddprun.main()


if __name__ == "__main__":
    sys.exit(main())
