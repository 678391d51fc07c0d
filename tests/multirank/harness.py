"""Runs a body of a test on this rank, and has what bodies ask for.

    mpirun -np 2 python tests/multirank/harness.py FOLDER bodies.tape kinds_of_gradients '{}'

calls `kinds_of_gradients(**{})` of bodies/tape.py on both ranks, after init(). A test says
`job(tape.kinds_of_gradients, 2)` instead; see bodies/__init__.py. In FOLDER each rank leaves its
process id, what it reports and, at a signal, the stacks of its threads.
"""

import faulthandler
import importlib
import json
import os
import pathlib
import sys
import time

import hung

# As the launcher counts, so that they are known before init() and after shutdown().
_RANK, _SIZE = ["OMPI_COMM_WORLD_RANK", "PMI_RANK"], ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]
if "TORCHELASTIC_RUN_ID" in os.environ:
    _RANK, _SIZE = ["RANK"], ["WORLD_SIZE"]
rank = int(next((os.environ[name] for name in _RANK if name in os.environ), 0))
size = int(next((os.environ[name] for name in _SIZE if name in os.environ), 1))
OUT: pathlib.Path  # the folder of the test


def report(**values) -> None:
    """Leaves this rank's results for the test; whole, though the rank may be killed meanwhile."""
    path = OUT / f"rank{rank}.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps(values))
    part.replace(path)


def _has_reported(other: int) -> bool:
    return (OUT / f"rank{other}.json").exists()


def _may_report(other: int) -> bool:
    if other == rank or _has_reported(other):
        return False
    try:
        pid = (OUT / f"pid{other}").read_text()
    except FileNotFoundError:
        return True  # it begins
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def await_reports(among: int, limit: float) -> None:
    """Waits until so many ranks have reported or no other can, for so many seconds at most.

    mpirun ends the others with the first rank that fails.
    """
    until = time.monotonic() + limit
    while time.monotonic() < until:
        if sum(map(_has_reported, range(size))) >= among or not any(map(_may_report, range(size))):
            return
        time.sleep(0.01)


def report_in_time(**values) -> None:
    """Reports, and lets the others do so before this rank ends."""
    report(**values)
    await_reports(size, limit=1)


def without_init(body):
    """Marks a body before which init() is not called."""
    body.without_init = True
    return body


def _init() -> None:
    import smddp_tf as hvd

    hvd.init()
    assert (hvd.rank(), hvd.size()) == (rank, size), (hvd.rank(), hvd.size(), rank, size)


def _add_gpu(library) -> None:
    """Gives TensorFlow a GPU that only this process has (tests/fake_gpu).

    XLA has no compiler for it, so compiled functions run on the CPU.
    """
    import tensorflow as tf
    from tensorflow.python.eager.polymorphic_function import polymorphic_function
    from tensorflow.python.framework import load_library

    load_library.load_pluggable_device_library(library)
    call = polymorphic_function.Function.__call__

    def on_cpu_if_compiled(self, *args, **kwargs):
        if not self._jit_compile or not tf.executing_eagerly():
            return call(self, *args, **kwargs)
        with tf.device("/CPU:0"):
            return call(self, *args, **kwargs)

    polymorphic_function.Function.__call__ = on_cpu_if_compiled


def main(folder, module, name, arguments) -> None:
    """Calls the body; what is imported here is the standard library only."""
    global OUT
    OUT = pathlib.Path(folder)
    faulthandler.enable()  # a rank that crashes says in which thread, and where
    faulthandler.register(hung.WRITE_STACKS, file=open(OUT / f"stacks{rank}", "w"))
    (OUT / f"pid{rank}").write_text(str(os.getpid()))
    # Keras imports them if they are there, which takes a third of TensorFlow's whole import.
    sys.modules["sklearn"] = sys.modules["matplotlib"] = None
    sys.modules["harness"] = sys.modules["__main__"]  # what bodies import is what runs
    if "SMDDP_TEST_ONE_GPU" in os.environ:
        # NCCL connects ranks of one GPU if it takes them for ranks of several hosts.
        os.environ["NCCL_HOSTID"] = f"host of rank {rank}"
    if "FAKE_GPU_LIBRARY" in os.environ:
        _add_gpu(os.environ["FAKE_GPU_LIBRARY"])
    body = getattr(importlib.import_module(module), name)
    if not getattr(body, "without_init", False):
        _init()
    body(**json.loads(arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
