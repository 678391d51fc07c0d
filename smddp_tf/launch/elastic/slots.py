"""The processes of an elastic job: an mpirun for each slot, its output, and its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from smddp_tf.launch import mpi_tmpdir, reaper, supervise

VARIABLE = "SMDDP_RENDEZVOUS_SLOT"


class Slot:
    """A slot's mpirun.

    Args:
      number: the slot's.
      words: mpirun's command line.
      environment: for mpirun, and by it for the rank.
      tagged: whether each line of output begins with the number.
      own_folder: whether this mpirun is to have a folder of its own (mpi_tmpdir).

    Raises:
      OSError: mpirun cannot be started.
    """

    def __init__(
        self,
        number: int,
        words: Sequence[str],
        environment: Mapping[str, str],
        tagged: bool,
        own_folder: bool,
    ) -> None:
        self.number = number
        self._marks = [f"{reaper.VARIABLE}={environment[reaper.VARIABLE]}", f"{VARIABLE}={number}"]
        self._left = contextlib.ExitStack()
        given: Mapping[str, str] = {**environment, VARIABLE: str(number)}
        with contextlib.ExitStack() as failed:
            failed.callback(self._left.close)
            if own_folder:
                given = self._left.enter_context(mpi_tmpdir.own_folder(given, words))
            self._process = subprocess.Popen(
                list(words),
                env=dict(given),
                # Of several ranks none is the one to read it; and one that is lost takes a part.
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # A terminal's Ctrl-C reaches smddprun alone, which then ends the ranks. If smddprun
                # is killed the reaper ends them; preexec_fn, by which they could end with us, is
                # not safe beside threads.
                start_new_session=True,
            )
            if not own_folder:
                self._left.callback(mpi_tmpdir.remove_of_killed, given, self._process.pid)
            failed.pop_all()
        tag = f"[{number}] ".encode() if tagged else b""
        self._pumps = [
            supervise.Pump(self._process.stderr, 2, False, tag),
            supervise.Pump(self._process.stdout, 1, False, tag),
        ]

    @property
    def process_id(self) -> int:
        """Of mpirun."""
        return self._process.pid

    def code(self) -> int | None:
        """The exit code of an mpirun that has ended; as a shell has it if a signal ended it."""
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def signal(self, number: int) -> None:
        """Sends a signal to mpirun, which hands it on."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Ends mpirun, the rank and what that has started, all at once."""
        for process in reaper.processes_with(*self._marks):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                os.kill(process, signal.SIGKILL)
        if self.code() is None:
            self._process.kill()

    def finish(self) -> None:
        """After mpirun's end: waits for a slow reader of our output, and removes its folder."""
        for pump in self._pumps:
            pump.finish()
        self._left.close()

    def cause(self) -> str:
        """The last traceback that the rank has written; "" if there is none."""
        return self._pumps[0].heard.cause()
