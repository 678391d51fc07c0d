"""Seconds in which the machine ran. A virtual machine that its host stops has fewer of them.

A limit of a test is there to find ranks that wait for ever, and other clocks go on while a machine
stands still. Here a thread on each core sleeps for a tick again and again; what a tick takes beyond
LONGEST is not counted, and the core that counted least is believed.
"""

import functools
import os
import threading
import time

TICK = 0.1
LONGEST = 0.3  # on two cores with six busy processes each, one tick in 5,000 took longer
MOST_CORES = 8


class _Core(threading.Thread):
    """Counts the seconds of one core."""

    def __init__(self, core: int):
        super().__init__(daemon=True)
        self._core = core
        self._state = (0.0, time.monotonic())  # what is counted, and when that was
        self.start()

    def run(self):
        os.sched_setaffinity(0, {self._core})  # of this thread
        while True:
            time.sleep(TICK)
            self._state = self.seconds(), time.monotonic()

    def seconds(self) -> float:
        counted, at = self._state
        return counted + min(time.monotonic() - at, LONGEST)


@functools.cache
def _cores() -> tuple:
    return tuple(_Core(core) for core in sorted(os.sched_getaffinity(0))[:MOST_CORES])


def now() -> float:
    """Seconds since some moment; only differences mean anything."""
    return min(core.seconds() for core in _cores())


class Stopwatch:
    """What has passed since it was made, in seconds of the machine and of other clocks."""

    def __init__(self):
        self._begin = now(), time.monotonic()

    def seconds(self) -> float:
        return now() - self._begin[0]

    def standstill(self) -> float:
        """How long the machine did not run."""
        return time.monotonic() - self._begin[1] - self.seconds()
