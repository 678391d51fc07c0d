"""What a job's output says about its end: a rank's traceback, a host that was lost. Pure."""

from __future__ import annotations

import re

# How lines begin: of Open MPI [1,3]<stderr>: (with the job's name before a @), of MPICH [3], of
# srun 3:. A space may follow. The time, if it is asked for, comes before it.
_TIME = rb"(?:\[?\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\]?)?"
_TAG = re.compile(_TIME + rb"\[(?:[^\]\s]*,)?(\d+)\](?:<std(?:err|out)>:)?|(\d+):")
# Open MPI 4 and MPICH also put it before each piece that the rank wrote, inside of a line.
_INNER = re.compile(_TIME + rb"\[\d+,\d+\]<std(?:err|out)>:")
_FIRST = b"Traceback (most recent call last):"
# What Open MPI says about the rank that it blames.
_BLAMED = re.compile(rb"Process name: \[\S+?,(\d+)\]")
# What Open MPI's launchers say when a host has gone with all that ran there.
_LOST = re.compile(
    rb"(?:PRTE|ORTE) has lost communication with a remote daemon|A daemon failed to report back"
)
_LONGEST = 400  # lines
_MESSAGE = 200  # lines of an error's own text after the first
_WIDEST = 1 << 16  # bytes of a line's beginning, and of its end; a progress bar never ends its line


class Tracebacks:
    """Takes a stream of a job's output in pieces, and keeps the last traceback of each rank.

    Attributes:
      lost_host: whether the launcher said that it lost a host, and so ended the job.
    """

    def __init__(self, tagged: bool) -> None:
        """tagged: the launcher puts the rank before each line."""
        self.lost_host = False
        self._tagged = tagged
        self._rest = b""
        self._open: dict = {}  # rank -> (indentation, lines) of a traceback that goes on
        self._going_on: dict = {}  # rank -> (indentation, first line, lines left) of its message
        self._blocks: dict = {}  # rank -> its last traceback, in the order of the first ones
        self._blamed: int | None = None
        self._mixed = False

    def feed(self, piece: bytes) -> None:
        """Takes the next bytes, which may end anywhere in a line."""
        *lines, rest = (self._rest + piece).split(b"\n")
        for line in lines:
            self._line(line.rstrip(b"\r"))
        self._rest = rest if len(rest) <= 2 * _WIDEST else rest[:_WIDEST] + rest[-_WIDEST:]

    def _line(self, line: bytes) -> None:
        blamed = _BLAMED.search(line)
        if blamed and self._blamed is None:
            self._blamed = int(blamed[1])
        rank = None
        if self._tagged:
            tag = _TAG.match(line)
            if tag is None:  # the launcher's own
                self.lost_host = self.lost_host or _LOST.match(line) is not None
                return
            rank, line = int(tag[1] or tag[2]), _INNER.sub(b"", line[tag.end() :])
            line = line.replace(b"[%d] " % rank, b"")
        elif _LOST.match(line):
            self.lost_host = True
        if line.rstrip().endswith(_FIRST):
            before = line.partition(_FIRST)[0]
            # Indented more than by the tag it is of a group of exceptions. It may follow a progress
            # bar, which has not ended its line.
            after_bar = bool(before.strip())
            space = int(self._tagged and line[:1] == b" ") if after_bar else len(before)
            # Without tags the lines of two ranks that fail at once cannot be told apart.
            self._mixed = self._mixed or (not self._tagged and rank in self._open)
            self._open[rank] = (space, [_FIRST])
            self._going_on.pop(rank, None)
        elif rank in self._open:
            space, block = self._open[rank]
            block.append(line[space:])
            # Indented lines are places in files; the error itself is not indented.
            if not block[-1].startswith(b" ") or len(block) >= _LONGEST:
                self._blocks[rank] = self._open.pop(rank)[1]
                self._going_on[rank] = (space, block[-1], _MESSAGE)
        elif rank in self._going_on:
            self._message(rank, line)

    def _message(self, rank, line: bytes) -> None:
        """Takes a line that may belong to the message of the rank's last error."""
        space, first, left = self._going_on.pop(rank)
        line = line[space:]
        if line.strip() and not line[:1].isspace():
            # Errors of traced code say "in user code:" or "Graph execution error:" first, and what
            # is wrong in lines of any form. Without tags those could be the launcher's.
            if not (self._tagged and first.endswith(b":")):
                return
        self._blocks[rank].append(line)
        if left > 1:
            self._going_on[rank] = (space, first, left - 1)

    def cause(self) -> str:
        """The traceback of the rank that failed first; "" if none was seen, or none whole."""
        if not self._blocks or self._mixed:
            return ""
        first = next(iter(self._blocks))
        rank = self._blamed if self._blamed in self._blocks else first
        title = "the traceback" if rank is None else f"the traceback of rank {rank}"
        text = b"\n".join(self._blocks[rank]).decode(errors="replace")
        return f"{title} that ended the job:\n{text.rstrip()}"
