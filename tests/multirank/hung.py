"""What the threads of a rank that hangs do: Python's stacks, and where each waits in the kernel."""

import os
import pathlib
import signal
import time

WRITE_STACKS = signal.SIGRTMIN + 5  # to a rank, which then writes those of all its threads
LIBRARY_FRAMES = 4  # so many of a thread's innermost ones are shown
TICKS = os.sysconf("SC_CLK_TCK")  # of the kernel's clock, a second


def short(stacks: str) -> str:
    """Python's stacks with the innermost frames of each thread, and all of the project's."""
    lines, shown = [], 0
    for line in stacks.splitlines():
        frame = line.startswith("  File ")
        shown = shown + 1 if frame else 0
        if not frame or shown <= LIBRARY_FRAMES or not ("site-packages" in line or "/lib/" in line):
            lines.append(line)
    return "\n".join(lines) + "\n"


def _processor_seconds(task: pathlib.Path) -> float:
    after_name = (task / "stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / TICKS


def _region(process: pathlib.Path, address: int) -> str:
    """The file whose memory an address is in, or another name of the mapping."""
    last = ""
    for line in (process / "maps").read_text().splitlines():
        words = line.split(maxsplit=5)
        begin, end = (int(number, 16) for number in words[0].split("-"))
        # A library's own variables without initial values follow its last mapping, without a name.
        name = pathlib.Path(words[5]).name if len(words) > 5 else f"after {last}"
        if begin <= address < end:
            return name
        last = name.removeprefix("after ")
    return "?"


def _waits(process: pathlib.Path, task: pathlib.Path) -> str:
    """The system call that a thread is in, with its first argument and what that points into."""
    words = (task / "syscall").read_text().split()
    if len(words) < 3:
        return words[0]
    first = int(words[1], 16)
    return f"call {words[0]}({words[1]} in {_region(process, first)}, {words[2]})"


def _line(process: pathlib.Path, task: pathlib.Path, before: float) -> str:
    try:
        return _line_of_one(process, task, before)
    except OSError as error:  # it has ended
        return f"  thread {task.name}: {error.strerror}"


def _line_of_one(process: pathlib.Path, task: pathlib.Path, before: float) -> str:
    status = dict(
        line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line
    )
    total = _processor_seconds(task)
    return (
        f"  thread {task.name} {status['Name']}: {status['State']}, {total:.2f} s of processor, "
        f"{total - before:.2f} in the last second, {_waits(process, task)}"
    )


def threads(pid: int) -> str:
    """A line for each thread of a process; what cannot be read says why."""
    process = pathlib.Path("/proc", str(pid))
    try:
        before = {task: _processor_seconds(task) for task in (process / "task").iterdir()}
        time.sleep(1)
        return "\n".join(_line(process, task, used) for task, used in before.items()) + "\n"
    except OSError as error:
        return f"  its threads cannot be read: {error}\n"


def machine() -> str:
    """How busy the machine is."""
    load = pathlib.Path("/proc/loadavg").read_text().strip()
    pressure = pathlib.Path("/proc/pressure")
    waits = [
        f"{file.name}: {file.read_text().splitlines()[0]}"
        for file in (sorted(pressure.iterdir()) if pressure.exists() else ())
    ]
    return "\n".join([f"load {load}", *waits])
