"""An elastic job as the storm sees it: what its ranks report, and how its processes are reached."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import uuid

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "multirank")]

import hung  # noqa: E402
import launcher  # noqa: E402
import machine_time  # noqa: E402

from smddp_tf.launch import reaper  # noqa: E402

TIMEOUT_SECONDS = 6  # SMDDP_TIMEOUT_SECONDS, after which a stopped rank is noticed,
FENCE_SECONDS = 4  # and --fence-after, after which it is killed
SILENT_SECONDS = 5  # after so long a rank is looked at
RANKS, MOST = 3, 4
# TensorFlow removes these at exit, which a rank that is killed does not come to.
AUTOGRAPHS = "__autograph_generated_file"
VARIABLE = "SMDDP_TEST_STORM"
LOST = re.compile(r"slot (\d+)\)? (?:was lost|ended with|was silent|cannot start)")


class HangError(Exception):
    """Something did not happen in time."""


class Job:
    """A job of storm_training.py under smddprun.

    Args:
      how: of the training, `loop` or `fit`.
      folder: an empty one.
      cold: each rank imports TensorFlow; otherwise it is forked from a process that has it.
      patience: this many times the usual seconds until a rank counts as stopped.
    """

    limit_seconds = 60.0  # of the machine, for whatever is waited for

    def __init__(self, how: str, folder: pathlib.Path, cold: bool, patience: int) -> None:
        self.folder, self.token = folder, uuid.uuid4().hex
        self._read: dict = {}  # slot -> how far its log was read
        self.events: dict = {}  # slot -> what it reported
        self.victims: set = set()  # slots that something is done to
        self._silent: dict = {}  # slot -> what it did meanwhile
        self._orders = 0
        (folder / "tmp").mkdir()
        script = folder / "hosts.sh"
        script.write_text(f"#!/bin/sh\ncat {folder}/hosts\n")
        script.chmod(0o755)
        self.want(RANKS)
        paths = {"PATH": f"{launcher.BIN}:{os.environ['PATH']}"}
        python = [sys.executable] if cold else launcher.warm_python(None, paths)
        options = ["-np", RANKS, "--min-np", 1, "--max-np", MOST, "--host-discovery-script", script]
        options += ["--fence-after", patience * FENCE_SECONDS]
        command = self.command(options, [*python, HERE / "storm_training.py", folder, how])
        extra = {
            **paths,
            VARIABLE: self.token,
            "SMDDP_TIMEOUT_SECONDS": str(patience * TIMEOUT_SECONDS),
            "TMPDIR": str(folder / "tmp"),
        }
        with open(folder / "output", "wb") as output:
            self.smddprun = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=launcher.environment(extra),
                start_new_session=True,
            )

    def command(self, options: list, program: list) -> list:
        """What starts the job."""
        return [sys.executable, "-m", "smddp_tf.launch", *options, *program]

    def lines(self, ranks: int) -> str:
        """What the discovery script prints for so many ranks."""
        return f"localhost:{ranks}\n"

    # ---- what is known --------------------------------------------------------------------------

    def look(self) -> None:
        """Takes what the ranks have reported since."""
        for path in self.folder.glob("log*"):
            slot = int(path.name[3:])
            with open(path, "rb") as file:
                file.seek(self._read.get(slot, 0))
                whole = file.read().rpartition(b"\n")[0]
            if whole:
                self._read[slot] = self._read.get(slot, 0) + len(whole) + 1
                lines = map(json.loads, whole.splitlines())
                self.events.setdefault(slot, []).extend(lines)
        self._watch_silent()

    def _watch_silent(self) -> None:
        """Notes once what a rank does that says nothing, though no fault was done to it."""
        for slot in set(self.members()) - self.victims - set(self._silent):
            seconds = time.monotonic() - self.events[slot][-1]["at"]
            if seconds > SILENT_SECONDS and self.is_alive(slot):
                threads = hung.threads(self.pid(slot))
                self._silent[slot] = f"after {seconds:.1f} s of silence:\n{threads}"

    def output(self) -> str:
        """What smddprun and the ranks have printed."""
        return (self.folder / "output").read_text(errors="replace")

    def found(self, slot: int, event: str, since: float = 0.0) -> list:
        """A slot's reports of this kind, later than a time."""
        return [e for e in self.events.get(slot, []) if e["event"] == event and e["at"] > since]

    def members(self) -> list:
        """The slots that trained together last."""
        calls = [event for slot in self.events for event in self.found(slot, "call")]
        return max(calls, key=lambda event: event["at"])["members"] if calls else []

    def pid(self, slot: int) -> int:
        """Of the rank's process; 0 if it has ended and this cannot tell which it was."""
        return self.events[slot][0]["pid"]

    def is_alive(self, slot: int) -> bool:
        """Whether its process has not ended; a stopped one has not."""
        pid = self.pid(slot)
        return bool(pid) and launcher.runs(pid, "storm_training.py", "fork_server.py")

    def settled(self, size: int | None = None) -> bool:
        """Whether the members of the last call are alive, and all have stepped in it."""
        members = self.members()
        if len(members) < 2 or (size is not None and len(members) != size):
            return False
        for slot in members:
            calls, steps = self.found(slot, "call"), self.found(slot, "step")
            if not calls or calls[-1]["members"] != members or not self.is_alive(slot):
                return False
            if not steps or steps[-1]["at"] < calls[-1]["at"]:
                return False
        return True

    def mpirun(self, slot: int) -> int:
        """The process id of a slot's mpirun: the one whose parent is smddprun."""
        marks = f"SMDDP_RENDEZVOUS_SLOT={slot}", f"{VARIABLE}={self.token}"
        for pid in reaper.processes_with(*marks):
            stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
            if int(stat.rpartition(")")[2].split()[1]) == self.smddprun.pid:
                return pid
        raise RuntimeError(f"slot {slot} has no mpirun")

    # ---- what is done ---------------------------------------------------------------------------

    def want(self, ranks: int) -> None:
        """The discovery script says so many."""
        self.wanted = ranks
        new = self.folder / "hosts.new"
        new.write_text(self.lines(ranks))
        new.replace(self.folder / "hosts")

    def signal(self, slot: int, number: int) -> float:
        """Sends a signal to a rank; returns when."""
        pid, at = self.pid(slot), time.monotonic()
        if not pid:
            raise HangError(f"slot {slot} has no process")
        self.victims.add(slot)
        os.kill(pid, number)
        return at

    def order(self, point: str, slot: int | None, after: float = 0.0, does="die") -> int:
        """The process of a slot, or the next one to come, does this so long after a point."""
        self._orders += 1
        least = max(self.events) + 1 if slot is None else slot
        order = {"number": self._orders, "point": point, "least": least, "after": after}
        order |= {"most": least + 1000 if slot is None else slot, "does": does}
        new = self.folder / "order.new"
        new.write_text(json.dumps(order))
        new.replace(self.folder / "order")
        return self._orders

    def is_taken(self, number: int) -> bool:
        """Whether a process has begun to carry out an order."""
        return (self.folder / f"taken{number}").exists()

    def withdraw(self, number: int) -> bool:
        """Takes the last order back; False if a process was first."""
        try:
            (self.folder / "order").rename(self.folder / f"withdrawn{number}")
        except FileNotFoundError:
            return False
        return True

    def ordered(self, number: int) -> tuple:
        """Waits until an order was carried out; returns (slot, when)."""

        def carried_out():
            for slot in self.events:
                dies = self.found(slot, "dies")
                if dies and slot not in self.victims:
                    return slot, dies[0]["at"]
            return None

        slot, at = self.wait(carried_out, f"order {number}")
        self.victims.add(slot)
        return slot, at

    def wait(self, happened, what: str):
        """Waits until a function returns something true, and returns that.

        Raises:
          HangError: it did not happen in time, or the job ended before.
        """
        watch = machine_time.Stopwatch()
        while True:
            ended = self.smddprun.poll() is not None
            self.look()
            result = happened()
            if result:
                return result
            if ended:
                raise HangError(f"the job ended before {what}")
            if watch.seconds() > self.limit_seconds:
                raise HangError(f"after {self.limit_seconds:g} s, not yet: {what}")
            time.sleep(0.01)

    def end(self) -> int:
        """Lets the training end, and waits for that; returns the exit code."""
        (self.folder / "enough").touch()
        self.wait(lambda: self.smddprun.poll() is not None, "the job's end")
        return self.smddprun.returncode

    # ---- at its end -----------------------------------------------------------------------------

    def stacks(self) -> str:
        """What all of its processes do; of those that have ended, what they did when silent."""
        living = [slot for slot in self.events if self.is_alive(slot)]
        for slot in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid(slot), hung.WRITE_STACKS)
        time.sleep(1)
        texts = [hung.machine(), f"faults were done to slots {sorted(self.victims)}"]
        for slot, events in sorted(self.events.items()):
            path = self.folder / f"stacks{slot}"
            text = hung.short(path.read_text()) if path.exists() else ""
            text += self._silent.get(slot, "")
            if slot in living:
                text += hung.threads(self.pid(slot))
            if text.strip():
                texts.append(f"slot {slot}, last {events[-3:]}:\n{text}")
        return "\n".join(texts)

    def left(self) -> list:
        """What is there although the job has ended."""
        deadline = time.monotonic() + 3
        while True:
            processes = reaper.processes_with(f"{VARIABLE}={self.token}")
            ranks = [self.pid(slot) for slot in self.events if self.is_alive(slot)]
            files = sorted(
                path.name
                for path in (self.folder / "tmp").iterdir()
                if not path.name.startswith(AUTOGRAPHS)
            )
            if not (processes or ranks or files) or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        found = [f"process {pid} ({_words(pid)})" for pid in {*processes, *ranks}]
        return found + files

    def kill(self) -> None:
        """Ends whatever there is of it."""
        for _ in range(20):
            pids = {*reaper.processes_with(f"{VARIABLE}={self.token}")}
            pids |= {self.pid(slot) for slot in self.events if self.is_alive(slot)}
            if not pids:
                break
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        self.smddprun.wait(10)

    def lost(self) -> set:
        """The slots that smddprun calls lost."""
        return set(map(int, LOST.findall(self.output())))


def _words(pid: int) -> str:
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
    except OSError:
        return "it has just ended"
