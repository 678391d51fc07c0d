"""What the ranks of run() call in these tests; they import it by its name."""

import os
import pathlib
import signal
import sys
import threading
import time

import numpy as np

import smddp_tf as hvd


class OwnError(ValueError):
    """An exception that pickle takes."""


class StubbornError(Exception):
    """One that cannot be made again from what it holds."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class OnlyThere:
    """A value that a rank can pickle, and nobody load."""

    def __reduce__(self):
        return int, ("no number",)


def place(first, *, last):
    """Says where it is."""
    hvd.init()
    print(f"here is {hvd.rank()}")
    print(f"an error of {hvd.rank()}", file=sys.stderr)
    sys.stdin.read()  # ends at once
    return first, hvd.rank(), hvd.size(), last, os.getcwd(), sys.path


def large(elements):
    """As many float64, other ones on each rank."""
    hvd.init()
    return np.arange(elements, dtype=np.float64) * (hvd.rank() + 1)


def fail(how):
    """Rank 1 does not return as it should; what rank 0 gets is 0."""
    hvd.init()
    if hvd.rank() == 1:
        return WAYS[how]()
    if how in ENDS_THE_JOB:
        time.sleep(60)  # the launcher ends it
    return 0


def _raise(error):
    raise error


WAYS = {
    "raises": lambda: _raise(OwnError("the reason")),
    "raises what cannot be made again": lambda: _raise(StubbornError(1, 2)),
    "raises what cannot be pickled": lambda: _raise(OwnError(threading.Lock())),
    "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exits with 3": lambda: sys.exit(3),
    "exits with a text": lambda: sys.exit("for a reason"),
    "exits with 0": sys.exit,
    "leaves": lambda: os._exit(0),
    "returns a lock": threading.Lock,
    "returns what nobody loads": OnlyThere,
    "interrupts itself": lambda: os.kill(os.getpid(), signal.SIGINT) or time.sleep(60),
}
ENDS_THE_JOB = set(WAYS) - {"exits with 0", "leaves", "returns what nobody loads"}


def wait(folder):
    """For ever, as it were; leaves a sign that it does."""
    pathlib.Path(folder, f"pid{os.getpid()}").touch()
    time.sleep(120)
