"""A script that calls run() with launcher="ray": calls_run_on_ray.py FOLDER."""

import os
import pathlib
import signal
import sys
import threading
import time

import functions
import ray

import smddp_tf as hvd
from smddp_tf.errors import RankFailedError
from smddp_tf.launch import LaunchError


def own(factor):
    """A function of the script."""
    hvd.init()
    print(f"here is {hvd.rank()}")
    return factor * hvd.rank(), hvd.size()


def interrupt_when_waiting(folder):
    """Ctrl-C to this process once both ranks wait; says when they have ended."""
    deadline = time.monotonic() + 60
    while len(list(folder.glob("pid*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    begin = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)
    ranks = [path.name[3:] for path in folder.glob("pid*")]
    while any(pathlib.Path(f"/proc/{pid}").exists() for pid in ranks):
        time.sleep(0.01)
    print(f"gone after {time.monotonic() - begin:.2f} s")


if __name__ == "__main__":
    where = pathlib.Path(sys.argv[1])
    ray.init(num_cpus=2, include_dashboard=False)
    print("results", hvd.run(own, (3,), np=2, launcher="ray"))
    try:
        hvd.run(functions.fail, ("raises",), np=2, launcher="ray")
    except RankFailedError as error:
        print("cause", repr(error.__cause__), error.rank)
    try:
        hvd.run(own, (3,), np=2, launcher="ray", resources={"num_cpus": 1000})
    except LaunchError as error:
        print("refused", error)
    interrupts = threading.Thread(target=interrupt_when_waiting, args=[where], daemon=True)
    interrupts.start()
    try:
        hvd.run(functions.wait, (str(where),), np=2, launcher="ray")
    except KeyboardInterrupt:
        print("interrupted")
    interrupts.join(20)
