"""What processes do in test_cycles.py: they begin and leave a job again and again."""

import os
import threading

from harness import report, without_init

CYCLES = 200


def _status() -> dict:
    with open("/proc/self/status") as lines:
        fields = dict(line.split(":", 1) for line in lines)
    return {
        "memory": int(fields["VmRSS"].split()[0]),
        "addresses": int(fields["VmSize"].split()[0]),
        "threads": int(fields["Threads"]),
        "files": len(os.listdir("/proc/self/fd")),
    }


def _cycle(hvd):
    hvd.init()
    hvd.barrier()
    hvd.shutdown()


def _grow() -> dict:
    import smddp_tf as hvd

    for _ in range(20):  # until allocators and caches have what they keep
        _cycle(hvd)
    before = _status()
    for _ in range(CYCLES):
        _cycle(hvd)
    after = _status()
    return {name: after[name] - before[name] for name in before}


@without_init
def alone():
    report(**_grow())


@without_init
def with_mpi4py():
    """MPI began before the first init(), and stays."""
    from mpi4py import MPI

    report(**_grow(), ranks=MPI.COMM_WORLD.size)


@without_init
def with_a_thread_inside():
    """A thread calls the library all the time, so what it may look at cannot be freed at once."""
    import smddp_tf as hvd

    over = threading.Event()
    ranks = set()

    def look():
        while not over.is_set():
            if hvd.is_initialized():
                try:
                    ranks.add(hvd.stats()["size"])
                except (hvd.NotInitializedError, KeyError):  # it left between the two calls
                    continue

    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(CYCLES):
        _cycle(hvd)
    over.set()
    thread.join(30)
    report(ended=not thread.is_alive(), ranks=sorted(ranks))
