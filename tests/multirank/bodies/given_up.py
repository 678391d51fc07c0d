"""What ranks do in test_given_up.py."""

import ctypes
import os
import signal
import threading
import time

import numpy as np
from harness import OUT, rank, report

import smddp_tf as hvd

BYTES = 256 << 20


def the_root_stops(library):
    """In the middle of a broadcast; `library` is the path of libsmddp.so."""
    from mpi4py import MPI

    lib = ctypes.CDLL(library)
    data = np.zeros(BYTES, np.uint8) if rank == 0 else np.ones(BYTES, np.uint8)
    pids = hvd.allgather_object(os.getpid())

    def stop_the_root():
        while data[0] == 0:
            time.sleep(0.001)
        os.kill(pids[1], signal.SIGSTOP)

    if rank == 0:
        threading.Thread(target=stop_the_root, daemon=True).start()
    code = lib.smddp_broadcast(
        ctypes.c_void_p(data.ctypes.data), ctypes.c_int64(data.nbytes), 1, b"weights"
    )
    if rank == 0:
        came = int(np.count_nonzero(data))
        data[:] = 7
        os.kill(pids[1], signal.SIGCONT)
        # Whoever calls MPI moves what it has under way.
        until = time.time() + 3
        while time.time() < until:
            MPI.COMM_WORLD.Iprobe()
        report(code=code, came=came, overwritten=int(np.count_nonzero(data != 7)))
    until = time.time() + 60
    while not (OUT / "rank0.json").exists() and time.time() < until:
        time.sleep(0.1)
    os._exit(0)
