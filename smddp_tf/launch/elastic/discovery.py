"""--host-discovery-script: a program that prints the hosts that may run ranks, a line for each."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence

_LIMIT_SECONDS = 30.0  # for a call
_MOST_BYTES = 1 << 20  # of its output
_LINE = re.compile(r"([^\s:]+)(?::([0-9]{1,6}))?")


def parse(text: str, slots: int) -> list[tuple[str, int]]:
    """The (host, slots) of lines `host` or `host:slots`.

    Raises:
      ValueError: a line is not of that form.
    """
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        host = _LINE.fullmatch(line)
        if host is None:
            raise ValueError(f"{line!r} is not `host` or `host:slots`")
        found.append((host[1], int(host[2]) if host[2] else slots))
    return found


class Discovery:
    """Calls the script; never twice at a time.

    Args:
      words: its path, and arguments.
      slots: of a host that comes without a number.
      say: tells the user.
    """

    def __init__(
        self,
        words: Sequence[str],
        slots: int,
        say: Callable[[str], None],
    ) -> None:
        self._words, self._slots, self._say = words, slots, say
        self._process: subprocess.Popen | None = None
        self._output = tempfile.TemporaryFile()  # a pipe could be held open, or fill up
        self._limit = 0.0
        self._said: set[str] = set()

    @property
    def process_ids(self) -> list[int]:
        """Of the call in progress."""
        return [] if self._process is None else [self._process.pid]

    def call(self) -> None:
        """Calls it, unless a call is in progress; one that takes too long is ended."""
        if self._process is not None:
            if time.monotonic() > self._limit:
                self.end()
                self._warn(f"it has not ended within {_LIMIT_SECONDS:g} s")
            return
        self._output.seek(0)
        self._output.truncate()
        self._limit = time.monotonic() + _LIMIT_SECONDS
        try:
            self._process = subprocess.Popen(
                self._words,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                start_new_session=True,
            )
        except OSError as error:
            self._warn(f"it cannot be run: {error}")

    def answer(self) -> list[tuple[str, int]] | None:
        """The (host, slots) that may run ranks, once after each call that has ended well."""
        if self._process is None or self._process.poll() is None:
            return None
        code, self._process = self._process.returncode, None
        if code != 0:
            self._warn(f"it ended with exit code {code}")
            return None
        self._output.seek(0)
        text = self._output.read(_MOST_BYTES).decode(errors="replace")
        try:
            return parse(text, self._slots)
        except ValueError as error:
            self._warn(str(error))
            return None

    def end(self) -> None:
        """Ends the call in progress."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(timeout=10)
            self._process = None

    def _warn(self, text: str) -> None:
        """Once for each text: the script is called every second."""
        if text not in self._said:
            self._said.add(text)
            self._say(f"--host-discovery-script {self._words[0]}: {text}")
