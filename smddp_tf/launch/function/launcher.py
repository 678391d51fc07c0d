"""smddprun as a process of the caller's: its lines are printed, and it ends with its caller."""

from __future__ import annotations

import collections
import contextlib
import io
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence

_Process = subprocess.Popen[bytes]
# Longer than smddprun needs to end a job that does not want to.
_END_SECONDS = 60
_DRAIN_SECONDS = 5  # for what is left of the output after smddprun's end
_LOOK_SECONDS = 0.1  # an interrupt without a signal, as Ray's, comes between two waits
_TAIL_LINES = 20


def _read(stream: io.BufferedReader, to: str, lines: queue.SimpleQueue[tuple[str, str]]) -> None:
    with stream:
        for line in stream:
            lines.put((to, line.decode(errors="replace")))
    lines.put((to, ""))


def _end(process: _Process) -> None:
    """Has smddprun end its job; kills it if it does not."""
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except BaseException:  # or a second interrupt: its reaper ends the ranks then
        process.kill()
        process.wait(10)
        raise


@contextlib.contextmanager
def _held(words: Sequence[str], environment: Mapping[str, str]) -> Iterator[_Process]:
    """smddprun, which ends with the block or with this process. Its output is piped."""
    process = subprocess.Popen(
        [sys.executable, "-m", "smddp_tf.launch.function.held", *words],
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A terminal and a notebook interrupt this process's group; it is told by us.
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            _end(process)
        if process.stdin is not None:
            process.stdin.close()


def _show(process: _Process) -> list[str]:
    """Prints the lines of smddprun and its ranks as they come, from the calling thread.

    A notebook shows them below the cell then. Returns the last ones of stderr, after the end.
    """
    lines: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    streams = {"stdout": process.stdout, "stderr": process.stderr}
    for to, stream in streams.items():
        threading.Thread(target=_read, args=[stream, to, lines], daemon=True).start()
    last: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
    silent = 0.0
    while streams:
        try:
            to, line = lines.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            silent += _LOOK_SECONDS
            if silent >= _DRAIN_SECONDS and process.poll() is not None:
                break  # something that ranks have left holds the stream
            continue
        silent = 0
        if not line:
            del streams[to]
            continue
        if to == "stderr":
            last.append(line.rstrip())
        print(line, end="", file=getattr(sys, to), flush=True)
    process.wait()
    return list(last)


def launch(words: Sequence[str], environment: Mapping[str, str]) -> tuple[int, list[str]]:
    """Runs smddprun with these words; returns its exit code and the last lines of its stderr."""
    with _held(words, environment) as process:
        last = _show(process)
    return process.returncode, last
