"""Long-lived jobs that many tests share, so that they start Python and TensorFlow once.

A script that ends well leaves its job to the next one with the same number of ranks, environment
and Python; one that fails, hangs or ends a rank takes the job with it.
"""

import collections
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
START_MEMORY = 3 << 30  # bytes that must be available for a further job to be kept
MOST_KEPT = 10
START_SECONDS = 90


class SharedJob:
    """One mpirun of rank_loop.py, and a connection to each of its ranks."""

    def __init__(self, command, ranks: int, env: dict):
        self._folder = tempfile.TemporaryDirectory(prefix="job", ignore_cleanup_errors=True)
        self._output = (pathlib.Path(self._folder.name) / "output").open("w+", errors="replace")
        path = str(pathlib.Path(self._folder.name) / "socket")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(ranks)
            self._process = subprocess.Popen(
                [*map(str, command), str(HERE / "rank_loop.py"), path],
                stdout=self._output,
                stderr=subprocess.STDOUT,
                env={**env, "TMPDIR": self._folder.name},
                start_new_session=True,
            )
            self._ranks = [None] * ranks
            self._pids: list = []
            try:
                self._accept(listener, ranks)
            except OSError as error:
                text = self.end()
                raise RuntimeError(f"the job did not start ({error}):\n{text}") from error

    def _accept(self, listener, ranks: int) -> None:
        end = time.monotonic() + START_SECONDS
        listener.settimeout(0.5)
        for _ in range(ranks):
            while True:
                try:
                    connection, _ = listener.accept()
                    break
                except TimeoutError:
                    if time.monotonic() > end or self._process.poll() is not None:
                        raise
            pid, _, _ = _credentials(connection)
            self._pids.append(pid)
            connection.settimeout(START_SECONDS)
            lines = connection.makefile("rw")
            self._ranks[json.loads(lines.readline())["rank"]] = (connection, lines)

    def run(self, script, folder, timeout: float) -> tuple:
        """Runs a script on all ranks. Returns (whether all ended well, whether one did not end)."""
        task = {"script": str(script), "folder": str(folder)}
        end = time.monotonic() + timeout
        well = True
        for _, lines in self._ranks:
            with contextlib.suppress(BrokenPipeError):  # its answer will be missing
                print(json.dumps(task), file=lines, flush=True)
        for connection, lines in self._ranks:
            connection.settimeout(max(0.1, end - time.monotonic()))
            try:
                answer = lines.readline()
            except TimeoutError:
                return False, True
            except ConnectionResetError:
                answer = ""
            well = well and bool(answer)
        return well, False

    def close(self) -> None:
        """Tells the ranks that no more comes."""
        for connection, lines in filter(None, self._ranks):
            with contextlib.suppress(OSError):
                lines.close()
            connection.close()

    def end(self) -> str:
        """Ends the job, and kills what did not end; returns what mpirun printed."""
        self.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                for pid in self._pids:
                    _kill_rank(pid)
                self._process.wait()
        self._output.seek(0)
        text = self._output.read()
        self._output.close()
        self._folder.cleanup()
        return text


def _credentials(connection) -> tuple:
    """Process, user and group at the other end."""
    size = 3 * 4
    numbers = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return tuple(memoryview(numbers).cast("i"))


def _kill_rank(pid: int) -> None:
    """Kills a rank, if the process is still one."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        if b"rank_loop.py" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


def _available_memory() -> int:
    text = pathlib.Path("/proc/meminfo").read_text()
    return int(text.split("MemAvailable:")[1].split()[0]) * 1024


class SharedJobs:
    """Those that live, by command and environment."""

    def __init__(self):
        self._jobs: collections.OrderedDict = collections.OrderedDict()

    def run(self, command, ranks: int, env: dict, script, folder, timeout: float) -> tuple:
        """Returns (exit code, output, timed out), as of a job of its own."""
        key = (tuple(map(str, command)), tuple(sorted(env.items())))
        job = self._jobs.pop(key, None) or SharedJob(command, ranks, env)
        well, timed_out = job.run(script, folder, timeout)
        output = ""
        if well:
            self._jobs[key] = job
            if len(self._jobs) > MOST_KEPT or (_available_memory() < START_MEMORY):
                self._jobs.popitem(last=False)[1].end()  # that which was used least recently
        else:
            output = job.end()
        for rank in range(ranks):
            path = pathlib.Path(folder) / f"output{rank}"
            if path.exists():
                output += path.read_text(errors="replace")
        return (0 if well else 1), output, timed_out

    def end(self) -> None:
        """Ends all."""
        for job in self._jobs.values():
            job.close()
        while self._jobs:
            self._jobs.popitem()[1].end()
