"""What ranks do in test_harness.py."""

import os
import time

from harness import OUT, rank, report, size, without_init

import smddp_tf as hvd


def fails(number):
    if rank == 1:
        raise RuntimeError(f"this line was told to fail with {number}")  # the line
    hvd.barrier()


def hangs():
    if rank == 1:
        time.sleep(600)  # where it hangs
    report(done=True)


def reports(given, *, more="default"):
    assert (hvd.rank(), hvd.size()) == (rank, size)
    hvd.shutdown()
    report(given=given, more=more, folder=str(OUT))


@without_init
def is_on_its_own():
    report(initialized=hvd.is_initialized(), rank=rank, pid=os.getpid())
