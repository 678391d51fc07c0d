"""``python -m smddp_tf --version``: what is installed here, for bug reports."""

import argparse
import importlib.metadata
import os
import pathlib
import platform
import shutil
import subprocess

import smddp_tf
from smddp_tf._src.graph import library
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job import native
from smddp_tf.doctor import software
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


def _installed_from() -> str:
    """The wheel's tag, or where the package lies if it is not an installed wheel's."""
    here = pathlib.Path(smddp_tf.__file__).parent
    for found in importlib.metadata.distributions(name="smddp_tf"):
        packaged = pathlib.Path(str(found.locate_file("smddp_tf")))
        lines = (found.read_text("WHEEL") or "").splitlines()
        tags = [line.removeprefix("Tag: ") for line in lines if line.startswith("Tag: ")]
        # Building a wheel leaves metadata in the checkout, too, but without tags.
        if tags and packaged.exists() and packaged.samefile(here):
            return f"wheel {' '.join(tags)} in {here.parent}"
    return f"no wheel: {here.parent}"


def _mpi(opened: str) -> str:
    """The MPI library of this process, or the launcher whose library a job would open."""
    if opened != "none":
        return opened
    launcher = shutil.which("mpirun")
    if launcher is None:
        return "not opened, for there is one process; no mpirun on PATH"
    try:
        ran = subprocess.run(
            [launcher, "--version"], capture_output=True, text=True, timeout=20, check=True
        )
        said = ran.stdout.strip().splitlines()
    except (OSError, subprocess.SubprocessError) as error:
        said = [str(error)]
    # MPICH's first line is a title; its second one has the version.
    title = " ".join(" ".join(said[:2]).split()) or "says no version"
    return f"not opened, for there is one process; {launcher} is {title}"


def _lines() -> list:
    core = native.core()
    smddp_tf.init()
    stats = smddp_tf.stats()
    torch = software.distribution(("torch",))
    system, cores = platform.uname(), len(os.sched_getaffinity(0))
    libc = " ".join(platform.libc_ver()) or "no glibc"
    return [
        f"smddp_tf {smddp_tf.__version__} on Python {platform.python_version()}",
        f"installed from: {_installed_from()}",
        f"system: {system.system} {system.release} {system.machine}, {libc}, {cores} cores",
        f"core library {core.smddp_version().decode()}: {core._name}",
        f"built by: {core.smddp_build().decode()}",
        f"instruction set: {stats['isa']}",
        f"MPI: {_mpi(stats['mpi'])}",
        f"NCCL: {native.nccl()}",
        f"kernels for GPUs: {native.kernels()}",
        *_tensorflow_lines(),
        f"PyTorch {torch or 'is not installed'}",
    ]


def main() -> None:
    """Runs the command line; --version is the only option."""
    parser = argparse.ArgumentParser(prog="python -m smddp_tf", description=__doc__)
    parser.add_argument("--version", action="store_true", required=True)
    parser.parse_args()
    print("\n".join(_lines()))


main()
