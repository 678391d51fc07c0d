"""``python -m smddp_tf --version``: what is installed here, for bug reports."""

import argparse
import platform

import smddp_tf
from smddp_tf._graph import library
from smddp_tf._graph.framework import tensorflow
from smddp_tf._job import native
from smddp_tf.errors import LibraryError

# Texts for the values of library.handover().
_COMPLETE = ("not decided yet", "a callback that is kept", "a copied callback", "blocking")


def _tensorflow_lines() -> list:
    """TensorFlow's version, and the interfaces chosen at run time."""
    try:
        tf = tensorflow()
        library.check_async_ops()
        handover = library.handover()
    except ImportError as error:
        return [f"TensorFlow: {error}"]
    try:
        jit = f"{library.xla_call_kind()} custom calls"
    except LibraryError as error:
        jit = f"not available: {error}"
    return [
        f"TensorFlow {tf.__version__}",
        f"jit_compile=True: {jit}",
        f"operations complete by: {_COMPLETE[handover]}",
    ]


def _lines() -> list:
    core = native.core()
    smddp_tf.init()
    stats = smddp_tf.stats()
    mpi = stats["mpi"] if stats["mpi"] != "none" else "not opened, for there is one process"
    return [
        f"smddp_tf {smddp_tf.__version__} on Python {platform.python_version()}",
        f"core library {core.smddp_version().decode()}: {core._name}",
        f"instruction set: {stats['isa']}",
        f"MPI: {mpi}",
        *_tensorflow_lines(),
    ]


def main() -> None:
    """Runs the command line; --version is the only option."""
    parser = argparse.ArgumentParser(prog="python -m smddp_tf", description=__doc__)
    parser.add_argument("--version", action="store_true", required=True)
    parser.parse_args()
    print("\n".join(_lines()))


main()
