"""Runs a launcher's command: passes signals on, watches its stderr, starts it again."""

from __future__ import annotations

import collections
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

from smddp_tf.launch import reaper
from smddp_tf.launch.tracebacks import Tracebacks

GRACE_SECONDS = 30  # for the launcher to end its ranks after a signal
ORPHAN_SECONDS = 5  # for ranks whose launcher was killed to end after SIGTERM
LOST_HOST = "the launcher lost a host and ended the job, although its own exit code is 0"
_DRAIN_SECONDS = 5
# Warnings before a time limit, as of Slurm, say: for scripts that want to save.
FOR_RANKS = (signal.SIGUSR1, signal.SIGUSR2)
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LONGEST_LINE = 1 << 16  # bytes; a progress bar may never end its line


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended: the exit code to return, the signal that we got, the cause if known."""

    code: int
    interrupted: bool = False
    cause: str = ""


def say(text: str) -> None:
    """Writes a line to stderr, in one piece.

    print() would write the end of the line apart if PYTHONUNBUFFERED is set, and a rank's line
    could come between.
    """
    sys.stderr.write(f"smddprun: {text}\n")
    sys.stderr.flush()


class Pump(threading.Thread):
    """Copies one of the launcher's streams to ours as it comes.

    Args:
      source: the launcher's stream.
      to: our file descriptor.
      tagged: whether the launcher begins each line with its rank.
      tag: what each line is to begin with here; with it lines are written whole.
    """

    _locks: collections.defaultdict = collections.defaultdict(threading.Lock)  # of descriptors

    def __init__(self, source, to: int, tagged: bool, tag: bytes = b"") -> None:
        super().__init__(daemon=True)
        self.heard = Tracebacks(tagged)
        self._source, self._to, self._writing = source, to, False
        self._tag, self._rest, self._lock = tag, b"", self._locks[to]
        self.start()

    def run(self) -> None:
        """Until the stream ends, or nobody reads ours."""
        with self._source, contextlib.suppress(BrokenPipeError):
            while piece := os.read(self._source.fileno(), 65536):
                self.heard.feed(piece)
                self._writing = True
                self._write(self._lines(piece))
                self._writing = False
            if self._rest:
                self._write(self._lines(b"\n"))

    def _lines(self, piece: bytes) -> bytes:
        """What to write of the next bytes: with a tag whole lines only, each with the tag."""
        if not self._tag:
            return piece
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            lines, self._rest = [*lines, self._rest], b""
        return b"".join(self._tag + line + b"\n" for line in lines)

    def _write(self, piece: bytes) -> None:
        view = memoryview(piece)
        with self._lock:  # other pumps write there too
            while view:
                try:
                    view = view[os.write(self._to, view) :]
                except BlockingIOError:  # whoever shares our stream made it so
                    select.select([], [self._to], [])

    def finish(self) -> None:
        """After the launcher's end: waits for a slow reader of ours.

        What the launcher left running may hold its stream, and is not waited for.
        """
        deadline = time.monotonic() + _DRAIN_SECONDS
        while self.is_alive() and (self._writing or time.monotonic() < deadline):
            self.join(0.1)


def reap_others(*own: int) -> None:
    """Forgets children that have ended, but for launchers: processes that ranks left behind."""
    with contextlib.suppress(ChildProcessError):
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while (ended := os.waitid(os.P_ALL, 0, options)) and ended.si_pid not in own:
            os.waitpid(ended.si_pid, 0)


def children() -> list:
    """The process ids of this process's children that have not ended."""
    reap_others()
    found: list = []
    for listed in pathlib.Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has ended
            found += map(int, listed.read_text().split())
    return found


def end_orphans(others: set) -> None:
    """Ends what a job that failed has left: it would go on, beside the next job.

    Ranks whose launcher was killed or left without them, and processes that ranks had started; not
    `others`, which ran before the job: the reaper, sshd, what a script started before `exec`.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + ORPHAN_SECONDS
        told: set = set()
        # What a rank had started becomes ours when the rank ends.
        while (left := set(children()) - others) and time.monotonic() < deadline:
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
        reap_others(process.pid)
        if info is not None and info.si_signo in FOR_RANKS:
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


def adopt_orphans() -> None:
    """Ranks whose launcher is killed become our children."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)


@contextlib.contextmanager
def kept(job: str) -> Iterator:
    """Has another process end the job's ranks on this machine if this one is killed meanwhile."""
    process = subprocess.Popen(
        [sys.executable, "-S", reaper.__file__, job, str(GRACE_SECONDS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # what ends this process's group does not end it
    )
    try:
        yield
    finally:
        process.kill()
        process.communicate(timeout=10)


def run(command: Sequence[str], environment: Mapping[str, str], tagged: bool) -> Outcome:
    """Runs the command once.

    Raises:
      OSError: it cannot be started.
    """
    job = secrets.token_hex(8)
    with kept(job):
        return _run(command, {**environment, reaper.VARIABLE: job}, tagged)


def _run(command: Sequence[str], environment: Mapping[str, str], tagged: bool) -> Outcome:
    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *FOR_RANKS)
    # What nohup and shells ignore stays ignored.
    watched = {number for number in wanted if signal.getsignal(number) != signal.SIG_IGN}
    watched.add(signal.SIGCHLD)
    others = set(children())
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    adopt_orphans()

    def in_launcher() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # it ends with us, even if we are killed

    try:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            # With other hosts, since mpirun may say there that it lost one.
            stdout=subprocess.PIPE if environment.get("SMDDP_LAUNCH_HOSTS") else None,
            stderr=subprocess.PIPE,
            preexec_fn=in_launcher,
        )
        streams = [(process.stderr, 2), (process.stdout, 1)]
        pumps = [Pump(stream, to, tagged) for stream, to in streams if stream is not None]
        interrupted = _wait(process, watched)
        if process.returncode != 0 or interrupted:
            end_orphans(others)
        for pump in pumps:
            pump.finish()
        lost = process.returncode == 0 and any(pump.heard.lost_host for pump in pumps)
        if lost:
            end_orphans(others)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    code, cause = process.returncode, pumps[0].heard.cause()
    if lost:
        # Seen with mpirun of Open MPI 5.0.11: it ends what is left of the job, and its code is 0.
        code, cause = 1, cause or LOST_HOST
    return Outcome(code if code >= 0 else 128 - code, interrupted, cause)


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
