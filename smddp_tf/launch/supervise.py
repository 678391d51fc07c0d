"""Runs a launcher's command: passes signals on, watches its stderr, starts it again."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import pathlib
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from smddp_tf.launch import keeper
from smddp_tf.launch.tracebacks import Tracebacks

GRACE_SECONDS = 30  # for the launcher to end its ranks after a signal
ORPHAN_SECONDS = 5  # for ranks whose launcher was killed to end after SIGTERM
# Warnings before a time limit, as of Slurm, say: for scripts that want to save.
_FOR_RANKS = (signal.SIGUSR1, signal.SIGUSR2)
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended: the exit code to return, the signal that we got, the cause if known."""

    code: int
    interrupted: bool = False
    cause: str = ""


def say(text: str) -> None:
    """Writes a line to stderr."""
    print(f"smddprun: {text}", file=sys.stderr, flush=True)


def _pump(source, tracebacks: Tracebacks) -> None:
    """Copies the launcher's stderr to ours as it comes."""
    with source:
        while piece := os.read(source.fileno(), 65536):
            tracebacks.feed(piece)
            view = memoryview(piece)
            while view:
                try:
                    view = view[os.write(2, view) :]
                except BlockingIOError:  # whoever shares our stderr made it so
                    select.select([], [2], [])


def _reap_others(own: int) -> None:
    """Forgets children that have ended, but for the launcher: processes that ranks left behind."""
    with contextlib.suppress(ChildProcessError):
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while (ended := os.waitid(os.P_ALL, 0, options)) and ended.si_pid != own:
            os.waitpid(ended.si_pid, 0)


def _children() -> list:
    """The process ids of this process's children that have not ended."""
    _reap_others(0)
    found: list = []
    for listed in pathlib.Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has ended
            found += map(int, listed.read_text().split())
    return found


def _end_orphans(others: set) -> None:
    """Ends what a job that failed has left: it would go on, beside the next job.

    Ranks whose launcher was killed or left without them, and processes that ranks had started; not
    `others`, which ran before the job: the keeper, sshd, what a script started before `exec`.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + ORPHAN_SECONDS
        told: set = set()
        # What a rank had started becomes ours when the rank ends.
        while (left := set(_children()) - others) and time.monotonic() < deadline:
            for child in left - told:
                # It is ours, so its number cannot be another's; but sudo may have made it root's.
                with contextlib.suppress(PermissionError):
                    os.kill(child, number)
            told |= left
            time.sleep(0.05)


def _wait(process, watched) -> bool:
    """Waits for the process; passes signals on. Returns whether there was one."""
    deadline = None
    while process.poll() is None:
        info = signal.sigtimedwait(watched, 0.5)
        _reap_others(process.pid)
        if info is not None and info.si_signo in _FOR_RANKS:
            process.send_signal(info.si_signo)  # mpirun and srun hand it on
        elif info is not None and info.si_signo != signal.SIGCHLD:
            # A terminal sends Ctrl-C to mpirun as well, and a second one would make it leave
            # without ending its ranks.
            from_terminal = info.si_signo == signal.SIGINT and info.si_code > 0
            if not from_terminal:
                number = signal.SIGTERM if info.si_signo == signal.SIGHUP else info.si_signo
                process.send_signal(number)
            deadline = deadline or time.monotonic() + GRACE_SECONDS
        if deadline is not None and time.monotonic() > deadline:
            say(f"the launcher has not ended {GRACE_SECONDS} s after the signal; it is killed")
            process.kill()
            process.wait(timeout=10)
    return deadline is not None


@contextlib.contextmanager
def _kept(job: str) -> Iterator:
    """Has another process end the job's ranks on this machine if this one is killed meanwhile."""
    process = subprocess.Popen(
        [sys.executable, "-S", keeper.__file__, job, str(GRACE_SECONDS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # what ends this process's group does not end it
    )
    try:
        yield
    finally:
        process.kill()
        process.stdin.close()
        process.wait(timeout=10)


def run(command: Sequence[str], environment: Mapping[str, str], tagged: bool) -> Outcome:
    """Runs the command once.

    Raises:
      OSError: it cannot be started.
    """
    job = secrets.token_hex(8)
    with _kept(job):
        return _run(command, {**environment, keeper.VARIABLE: job}, tagged)


def _run(command: Sequence[str], environment: Mapping[str, str], tagged: bool) -> Outcome:
    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *_FOR_RANKS)
    # What nohup and shells ignore stays ignored.
    watched = {number for number in wanted if signal.getsignal(number) != signal.SIG_IGN}
    watched.add(signal.SIGCHLD)
    others = set(_children())
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # ranks whose launcher is killed become our children

    def in_launcher() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # it ends with us, even if we are killed

    try:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stderr=subprocess.PIPE,
            preexec_fn=in_launcher,
        )
        tracebacks = Tracebacks(tagged)
        pump = threading.Thread(target=_pump, args=(process.stderr, tracebacks), daemon=True)
        pump.start()
        interrupted = _wait(process, watched)
        if process.returncode != 0 or interrupted:
            _end_orphans(others)
        pump.join(timeout=5)  # what the launcher left running may hold the pipe
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    code = process.returncode
    return Outcome(code if code >= 0 else 128 - code, interrupted, tracebacks.cause())


def run_with_restarts(
    command: Sequence[str],
    environment: Mapping[str, str],
    restarts: int,
    tagged: bool = False,
    once: Callable = run,
) -> Outcome:
    """Runs the command until it succeeds, and after failures up to `restarts` times again.

    Ranks see how often that was as SMDDP_RESTART, from 0. A signal to this process ends the job.

    Returns:
      How the last run ended.
    """
    for attempt in range(restarts + 1):
        outcome = once(command, {**environment, "SMDDP_RESTART": str(attempt)}, tagged)
        if outcome.code == 0:
            break
        if outcome.cause:
            say(outcome.cause)
        if outcome.interrupted:
            break
        text = f"the job failed with exit code {outcome.code}"
        if attempt < restarts:
            say(f"{text}; it starts again ({attempt + 1} of {restarts})")
        else:
            say(text + (f", and was started again {restarts} times" if restarts else ""))
    return outcome
