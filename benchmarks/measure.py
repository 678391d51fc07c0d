"""What every benchmark needs and that needs no TensorFlow: summaries, others' load, JSON lines."""

import ctypes
import gc
import json
import os
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# Of a ping-pong between cores (ping_pong.h), in nanoseconds, from near to far.
_DISTANCES = (("core", 85), ("socket", 280), ("sockets", float("inf")))
# By name, from near to far; "" is that of samples without a ping-pong.
DISTANCES = (*(name for name, _ in _DISTANCES), "")
_SHORTEST_SECONDS = 0.5  # of a load that ticks can tell to a few percent


def summarize(seconds):
    """Return median, tenth and ninetieth percentile and minimum of a list of times."""
    ordered = sorted(seconds)
    last = len(ordered) - 1
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return {
        "med": median,
        "p10": ordered[round(0.1 * last)],
        "p90": ordered[round(0.9 * last)],
        "min": ordered[0],
        "n": len(ordered),
    }


class PingPong:
    """The ping-pong between ranks 0 and 1 that tells how far apart their cores are.

    launch.py compiles it and names it in BENCH_PING_PONG; without that nothing is known.
    """

    def __init__(self, rank, size):
        """Meet the other rank; all others only look on."""
        path = os.environ.get("BENCH_PING_PONG", "")
        self._library = ctypes.CDLL(path) if path and size > 1 else None
        if self._library:
            self._library.BenchPingPong.restype = ctypes.c_double
            self._library.BenchPingPongOpen(rank, size)

    def __bool__(self):
        """Say whether there is anything to measure."""
        return self._library is not None

    def __call__(self):
        """Return nanoseconds there and back; 0 on ranks that take no part, or if none is known."""
        return self._library.BenchPingPong() if self._library else 0


def distance_of(nanoseconds):
    """Return the distance that a ping-pong means: "core" (hyperthreads), "socket" or "sockets"."""
    return next(name for name, below in _DISTANCES if nanoseconds < below)


def summarize_by_distance(seconds, pings):
    """Return the summary of the times taken at the most frequent distance, and those of each.

    `pings` has a ping-pong before and one after each sample; samples whose distance changed are
    dropped. Nothing is left, and {} returned, if all did.
    """
    groups = {}
    for sample, (before, after) in zip(seconds, pings, strict=True):
        if distance_of(before) == distance_of(after):
            groups.setdefault(distance_of(before), []).append((sample, before))
    if not groups:
        return {}
    by_distance = {}
    for distance, group in groups.items():
        least = min(ping for _, ping in group)
        summary = summarize([sample for sample, _ in group])
        by_distance[distance] = {**summary, "ping_pong_ns": round(least)}
    most = max(by_distance, key=lambda distance: by_distance[distance]["n"])
    dropped = len(seconds) - sum(len(group) for group in groups.values())
    return {
        **by_distance[most],
        "distance": most,
        "dropped": dropped,
        "by_distance": by_distance,
    }


def medians_by_distance(seconds, pings):
    """Return distance -> median seconds, of samples each between two ping-pongs.

    Ping-pongs of 0 know no distance: "" -> the median of all.
    """
    if not any(before or after for before, after in pings):
        return {"": median(seconds)}
    found = summarize_by_distance(seconds, pings).get("by_distance", {})
    return {distance: figures["med"] for distance, figures in found.items()}


def at_distance(row, distance):
    """Return a row with its figures at one distance; None if it has none.

    A row that knows no distance is the same at each.
    """
    if not distance or "by_distance" not in row:
        return row
    figures = row["by_distance"].get(distance)
    return {**row, **figures, "distance": distance} if figures else None


def distances_in(rows):
    """Return the distances that rows were measured at, from near to far; [""] if none knows one."""
    seen = {distance for row in rows for distance in row.get("by_distance", ())}
    return [name for name, _ in _DISTANCES if name in seen] or [""]


def median(values):
    """Return the median of a list of numbers."""
    return summarize(values)["med"]


def format_seconds(seconds):
    """Return a time in the unit that suits it."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.2f} ms"
    return f"{seconds:.3f} s"


def format_bytes(count):
    """Return a size: binary units where they come out even, else MB."""
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count // size} {unit}" if count % size == 0 else f"{count / 1e6:.0f} MB"
    return f"{count} B"


def launcher_rank():
    """Return the rank that mpirun gave this process, or 0, without any library."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        if name in os.environ:
            return int(os.environ[name])
    return 0


def _machine_ticks():
    """Return clock ticks of all cores since boot: busy, and stolen by the hypervisor."""
    with open("/proc/stat") as stat:
        fields = [int(value) for value in stat.readline().split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = (fields + [0] * 8)[:8]
    return user + nice + system + irq + softirq, steal


def _tree_ticks(root):
    """Return CPU ticks of the process `root` and its descendants, those reaped included."""
    children, ticks = {}, {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            text = Path("/proc", entry, "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we were listing; its parent has its ticks
        # The name in parentheses may hold spaces, so count fields from behind it: ppid is field 4,
        # utime to cstime are 14 to 17.
        fields = text.rpartition(")")[2].split()
        children.setdefault(int(fields[1]), []).append(int(entry))
        ticks[int(entry)] = sum(int(value) for value in fields[11:15])
    total, pending = 0, [root]
    while pending:
        pid = pending.pop()
        total += ticks.get(pid, 0)
        pending.extend(children.get(pid, ()))
    return total


class LoadMeter:
    """How many cores processes outside our own tree used between `with` and its end.

    A rank's tree begins at its launcher, since the other ranks are ours too; without a launcher it
    begins at this process. A figure taken while others used a core is no figure: rows carry
    `others_cores`, and `steal_cores` for what the hypervisor took. Clock ticks are 10 ms: a case
    too short for them gets an empty row, and the launcher fills in the load of the whole launch.
    """

    def __init__(self):
        """Find the tree's root."""
        launched = any(name in os.environ for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK"))
        self._root = os.getppid() if launched else os.getpid()
        self.row = {}

    def _read(self):
        own = _tree_ticks(self._root)
        return (*_machine_ticks(), own, os.times().elapsed)

    def __enter__(self):
        """Start."""
        self._start = self._read()
        return self

    def __exit__(self, *_):
        """Stop; `row` has the result."""
        busy, steal, own, elapsed = (b - a for a, b in zip(self._start, self._read(), strict=True))
        if elapsed < _SHORTEST_SECONDS:
            return
        ticks = elapsed * _TICKS_PER_SECOND
        self.row = {
            "others_cores": round(max(0.0, (busy - own) / ticks), 2),
            "steal_cores": round(max(0.0, steal / ticks), 2),
        }


class PeakMemory:
    """Resident bytes of this process: at `start`, and the highest since.

    Shared memory that it touched counts.
    """

    def __init__(self):
        """Start, with what earlier cases freed given back to the system."""
        gc.collect()
        # glibc keeps freed memory resident; other C libraries have no such function.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim:
            trim(0)
        # Writing 5 resets the high-water mark of this process (proc(5)); where that is refused, the
        # mark of its whole life stays.
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            self.resettable = False
        else:
            self.resettable = True
        self.start = self._status("VmRSS")

    def peak(self):
        """Return the highest number of resident bytes so far."""
        return self._status("VmHWM")

    @staticmethod
    def _status(key):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
        raise KeyError(key)


def append_row(path, row):
    """Append one JSON object as a line."""
    with open(path, "a") as lines:
        lines.write(json.dumps(row) + "\n")


def read_rows(path):
    """Return the objects of a file of JSON lines; none if there is no file."""
    path = Path(path)
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def describe(row):
    """Return a result row as a line a person can read."""
    parts = [f"{row['lib']}", f"np={row['np']}", row["case"]]
    parts += [f"{key} {format_seconds(row[key])}" for key in ("med", "p10", "p90") if key in row]
    extra = ("distance", "ping_pong_ns", "dropped", "algbw_gbs", "first_call_s")
    extra += ("peak_extra_mb", "slots_mb", "ratio", "samples_s", "others_cores")
    parts += [f"{key} {row[key]}" for key in extra if key in row]
    return "  ".join(parts)
