"""What ranks do in test_stuck_output.py."""

import os
import signal
import sys
import threading
import time

import machine_time
import tensorflow as tf
from harness import rank, report

import smddp_tf as hvd


def _let_nobody_read_stderr():
    """As with `| less`: the pipe is full, and its reader stands still. Returns its two ends."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        while True:
            os.write(write, bytes(4096))
    except BlockingIOError:
        os.set_blocking(write, True)
    os.dup2(write, sys.stderr.fileno())
    return read


def hears_of_a_failure(how):
    """Rank 0 cannot write to stderr, and waits for rank 1, which has left or stands still."""
    hvd.allreduce(1.0)
    begin, seconds, text = machine_time.now(), None, ""
    if rank == 0:
        _let_nobody_read_stderr()
        try:
            hvd.allreduce(tf.ones([3]), name="awaited")
        except tf.errors.OpError as error:
            seconds, text = machine_time.now() - begin, error.message
    elif how == "leaves":
        hvd.shutdown()
    else:
        time.sleep(6)  # longer than the limit of this job
    report(seconds=seconds, text=text)
    time.sleep(3 if how == "leaves" else 0)
    os._exit(0)


def _has_ended(process) -> bool:
    """Whether a process is gone, or only its parent has not heard of its end."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def is_ended_by_sigterm():
    """Rank 0 cannot write to stderr when it is to end; rank 1 sees how soon it has."""
    process = int(hvd.broadcast_object(os.getpid(), root_rank=0))
    if rank == 0:
        _let_nobody_read_stderr()
        send = threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGTERM))
        send.start()
        hvd.allreduce(1.0, name="awaited")
    begin = machine_time.now()
    while machine_time.now() - begin < 8 and not _has_ended(process):
        time.sleep(0.05)
    report(seconds=machine_time.now() - begin)
    os._exit(0)


def logs_and_goes_on():
    """Python's warnings go through the same log: 100 of them are soon said, or lost."""
    kept = os.dup(sys.stderr.fileno())
    read = _let_nobody_read_stderr()
    begin = machine_time.now()
    for _ in range(100):
        hvd._src.job.native.core().smddp_warn(b"x" * 100_000)
    seconds = machine_time.now() - begin
    os.set_blocking(read, False)
    said = b""
    while machine_time.now() - begin < 20 and b"were lost" not in said:
        try:
            said += os.read(read, 1 << 20)
        except BlockingIOError:
            hvd._src.job.native.core().smddp_warn(b"last")
            time.sleep(0.05)
    os.dup2(kept, sys.stderr.fileno())
    report(
        seconds=seconds, lost=b" messages were lost here" in said, whole=said.count(b"x" * 100_000)
    )
