"""Runs a script on several ranks under mpirun, with a limit, and collects what each rank reported.

Every wait is bounded: shortly before the limit each rank writes its Python stacks, so that a hang
says where it is, and at the limit the job is ended.
"""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(sys.executable).parent

PRELUDE = """
import faulthandler, json, os, pathlib, sys, time
faulthandler.dump_traceback_later({dump}, exit=False)
import numpy as np
OUT = pathlib.Path({out!r})
def report(**values):
    "Leaves this rank's results for the test."
    path = OUT / f"rank{{hvd.rank()}}.json"
    path.write_text(json.dumps(values))
"""


@dataclasses.dataclass
class Job:
    """What became of a job."""

    returncode: int
    output: str  # stdout and stderr of all ranks
    results: dict  # rank -> what it reported
    timed_out: bool

    def check(self, ranks: int) -> dict:
        """Fails unless the job ended well and every rank reported; returns the reports."""
        assert not self.timed_out, f"the job hung:\n{self.output[-8000:]}"
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


def run_command(command, *, timeout, env=None, cwd=None) -> tuple:
    """Runs a command in a process group of its own. Returns (code, output, timed out)."""
    process = subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment(env),
        cwd=cwd,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        # mpirun gives each rank a process group of its own and ends them when it is asked to.
        process.terminate()
        try:
            output, _ = process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        return -1, output, True
    return process.returncode, output, False


def mpirun(ranks: int, launcher=None) -> list:
    """The command that starts so many ranks; MPICH's mpirun takes no --oversubscribe."""
    launcher = launcher or BIN / "mpirun"
    if "mpich" in str(launcher):
        return [launcher, "-np", str(ranks)]
    return [launcher, "-np", str(ranks), "--oversubscribe"]


def run_ranks(
    body: str, ranks: int, tmp_path, *, env=None, timeout=120, python=None, launcher=None
) -> Job:
    """Runs `body` on every rank, after `import smddp_tf as hvd`, `init()` and `import tensorflow`.

    The body may call report(name=value, ...).
    """
    out = pathlib.Path(tmp_path)
    for old in out.glob("rank*.json"):
        old.unlink()
    script = out / "script.py"
    header = "import tensorflow as tf\nimport smddp_tf as hvd\nhvd.init()\n"
    header += "rank, size = hvd.rank(), hvd.size()\n"
    prelude = PRELUDE.format(dump=max(5, timeout - 10), out=str(out))
    script.write_text(prelude + header + textwrap.dedent(body))
    command = [*mpirun(ranks, launcher), python or sys.executable, script]
    code, output, timed_out = run_command(command, timeout=timeout, env=env)
    results = {int(path.stem[4:]): json.loads(path.read_text()) for path in out.glob("rank*.json")}
    return Job(code, output, results, timed_out)
