"""Runs a body on several ranks under mpirun, with a limit, and says what became of them.

Every wait is bounded, in seconds in which the machine ran. At the limit each rank writes its Python
stacks to a file and mpirun is asked to end the job, then what is left is killed: mpirun's process
group, and the ranks one by one, because mpirun gives each a group of its own. Each command has its
own TMPDIR: an mpirun that is killed leaves a folder there, and a later one with its process id does
not start.
"""

import dataclasses
import functools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import fork_servers
import hung
import machine_time
import shared

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BIN = pathlib.Path(sys.executable).parent


@dataclasses.dataclass
class Job:
    """What became of a job."""

    returncode: int
    output: str  # stdout and stderr of all ranks
    results: dict  # rank -> what it reported
    timed_out: bool
    where: dict = dataclasses.field(default_factory=dict)  # rank -> its stacks, if the job hung
    standstill: float = 0  # seconds

    def _places(self) -> str:
        ranks = "".join(f"\nrank {rank} was at:\n{text}" for rank, text in self.where.items())
        still = f"the machine stood still for {self.standstill:.1f} s while the job ran"
        return f"{ranks}\n{hung.machine()}\n{still}"

    def check(self, ranks: int) -> dict:
        """Fails unless the job ended well and every rank reported; returns the reports."""
        assert not self.timed_out, f"the job hung:\n{self.output[-8000:]}{self._places()}"
        assert self.returncode == 0, f"exit code {self.returncode}:\n{self.output[-8000:]}"
        assert sorted(self.results) == list(range(ranks)), self.output[-4000:]
        return self.results


def environment(extra=None) -> dict:
    """The environment of a job."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_", "PMI_"))}
    env.update(PYTHONPATH=str(ROOT), TF_CPP_MIN_LOG_LEVEL="3", OMP_NUM_THREADS="1")
    if os.getuid() == 0:
        env.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    env.update(extra or {})
    return env


def of_environment(name, value) -> list:
    """The commands of the processes, but for this one, that started with a variable's value."""
    found, wanted = [], f"{name}={value}".encode()
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            variables = (process / "environ").read_bytes().split(b"\0")
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # it has ended, or is somebody else's
        if wanted in variables and int(process.name) != os.getpid():
            found.append(command)
    return found


def runs(pid, *scripts) -> bool:
    """Whether a process has not ended yet, and runs one of the scripts if there are any."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
        command = pathlib.Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False
    ours = not scripts or any(script in command for script in scripts)
    return stat.rpartition(")")[2].split()[0] != "Z" and ours


def _signal_ranks(folder, number) -> None:
    """To the ranks that a job left running. A process id is used only while it is still ours."""
    for path in pathlib.Path(folder).glob("pid*"):
        pid = int(path.read_text() or 0)
        try:
            command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            ours = (folder, HERE / "fork_server.py")
            if set(map(os.fsencode, ours)) & set(command):
                os.kill(pid, number)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended, as it should


def run_command(command, *, timeout, env=None, cwd=None, folder=None) -> tuple:
    """Runs a command in a process group of its own. Returns (code, output, timed out).

    folder: where the ranks of run_ranks leave their process ids.
    """
    with tempfile.TemporaryDirectory(prefix="run", ignore_cleanup_errors=True) as temporary:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**environment(env), "TMPDIR": temporary},
            cwd=cwd,
            start_new_session=True,
        )
        return _wait(process, timeout, folder)


def _write_stacks(folder) -> None:
    """What the ranks that left their process ids do, into files."""
    _signal_ranks(folder, hung.WRITE_STACKS)
    time.sleep(1)
    for path in pathlib.Path(folder).glob("pid*"):
        text = hung.threads(int(path.read_text() or 0))
        path.with_name(path.name.replace("pid", "threads")).write_text(text)


def _where(folder) -> dict:
    """Rank -> what it was doing when its job hung."""
    where = {}
    for path in sorted(folder.glob("stacks*")):
        threads = path.with_name(path.name.replace("stacks", "threads"))
        more = threads.read_text() if threads.exists() else ""
        where[int(path.name[6:])] = hung.short(path.read_text()) + more
    return where


def _communicate(process, seconds) -> str:
    """What communicate() returns, with a limit in the machine's seconds."""
    watch = machine_time.Stopwatch()
    while True:
        try:
            return process.communicate(timeout=0.5)[0]
        except subprocess.TimeoutExpired:
            if watch.seconds() >= seconds:
                raise


def _wait(process, timeout, folder) -> tuple:
    """run_command's result; after its limit the processes are ended."""
    try:
        output = _communicate(process, timeout)
    except subprocess.TimeoutExpired:
        if folder is not None:
            _write_stacks(folder)
        process.terminate()
        try:
            _communicate(process, 15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        if folder is not None:
            _signal_ranks(folder, signal.SIGKILL)
        return -1, _communicate(process, 30), True
    return process.returncode, output, False


@functools.cache
def why_not(python: str, modules="tensorflow") -> str:
    """Why modules, given with commas, cannot be imported by that Python; "" if they can."""
    if not os.path.exists(python):
        return f"{python} does not exist; `make test` makes it"

    def ask() -> str:
        code, output, _ = run_command([python, "-c", f"import {modules}"], timeout=120)
        lines = output.strip().splitlines() or ["no output"]
        return "" if code == 0 else lines[-1]

    return shared.once(shared.name_of("import", python, modules), ask)


@functools.cache
def _is_open_mpi(launcher) -> bool:
    _, version, _ = run_command([launcher, "--version"], timeout=60)
    return "Open MPI" in version


def mpirun(ranks: int, launcher=None) -> list:
    """The command that starts so many ranks; MPICH's mpirun takes no --oversubscribe."""
    own = BIN / "mpirun"  # of this Python's environment, which has the library's MPI too
    launcher = launcher or (own if own.exists() else shutil.which("mpirun") or own)
    extra = ["--oversubscribe"] if _is_open_mpi(launcher) else []
    return [launcher, "-np", str(ranks), *extra]


def warm_python(python=None, env=None, modules="tensorflow") -> list:
    """The words that start a script as `python` would, but with these modules imported already."""
    return fork_servers.client(python or sys.executable, environment(env), modules)


def script(body, folder) -> list:
    """The words for Python that call a body of bodies/."""
    return [HERE / "harness.py", folder, *body.words()]


def run_ranks(
    body,
    ranks: int,
    tmp_path,
    *,
    env=None,
    timeout=120,
    python=None,
    launcher=None,
    cold=False,
    modules="tensorflow",
) -> Job:
    """Runs a body of bodies/ on every rank; it may call report(name=value, ...).

    cold: each rank starts Python and imports its modules itself, as under a launcher that is not
    the usual one.
    modules: those that ranks have from the start otherwise.
    """
    out = pathlib.Path(tmp_path)
    for pattern in ("rank*.json", "pid*", "stacks*", "threads*"):
        for old in out.glob(pattern):
            old.unlink()
    words = script(body, out)
    watch = machine_time.Stopwatch()
    cold = cold or launcher is not None
    python = [python or sys.executable] if cold else warm_python(python, env, modules)
    command = [*mpirun(ranks, launcher), *python, *words]
    code, output, timed_out = run_command(command, timeout=timeout, env=env, folder=out)
    results = {int(path.stem[4:]): json.loads(path.read_text()) for path in out.glob("rank*.json")}
    where = _where(out) if timed_out else {}
    return Job(code, output, results, timed_out, where, watch.standstill())
