"""What each rank of a long-lived job runs: one test's script after another, in one process.

    mpirun -np N python rank_loop.py SOCKET

The test process listens on SOCKET and sends one line of JSON a script: {"script", "folder"}. The
answer is a line, or that this rank ends. While a script runs, this rank's output goes to a file in
the folder.
"""

import faulthandler
import gc
import json
import linecache
import os
import pathlib
import socket
import sys
import traceback
import types

# Keras imports them if they are there, which takes a third of TensorFlow's whole import.
sys.modules["sklearn"] = sys.modules["matplotlib"] = None

import tensorflow as tf  # noqa: E402

import smddp_tf as hvd  # noqa: E402


def run(task: dict) -> None:
    """Runs a script as __main__. SystemExit or another exception passes."""
    path = pathlib.Path(task["script"])
    linecache.checkcache()  # another test's script may have had this name
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.__file__ = str(path)
    try:
        exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    except SystemExit as end:
        if end.code:
            raise
    finally:
        faulthandler.cancel_dump_traceback_later()  # the script has asked for it


def run_aside(task: dict) -> None:
    """run(), with the output of Python and of native code in a file of this rank."""
    kept = [os.dup(1), os.dup(2)]
    path = pathlib.Path(task["folder"]) / f"output{hvd.rank()}"
    with path.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        run(task)
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, old in enumerate(kept, start=1):
            os.dup2(old, descriptor)
            os.close(old)


def tidy() -> None:
    """Puts back what a script may have changed for the next."""
    from smddp_tf import _runtime

    for process_set in list(_runtime._added_sets.values()):
        hvd.remove_process_set(process_set)
    tf.keras.backend.clear_session()
    tf.keras.mixed_precision.set_global_policy("float32")
    gc.collect()


def main() -> None:
    hvd.init()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(sys.argv[1])
        lines = connection.makefile("rw")
        print(json.dumps({"rank": hvd.rank()}), file=lines, flush=True)
        for line in lines:
            run_aside(json.loads(line))  # an exception ends this rank, as it ends a script
            tidy()
            print("done", file=lines, flush=True)


main()
