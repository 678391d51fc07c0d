"""Two builds of the library against each other, in turns of a fraction of a second.

    git worktree add ../before v0.2.0 && make -C ../before build
    python benchmarks/compare.py ../before . [--np 4] [--nodes 2] [--rounds 15] [--only chain]

One job of each build stays alive; while one measures, the ranks of the other sleep. Whatever else
the machine does meets both alike, and the ratios of turns that follow each other are far steadier
than those of whole runs: quartiles within 10% where single figures vary twofold. The functions use
a variable, as a training step does. Each call lies between two ping-pongs (ping_pong.h), and each
distance between the cores of ranks 0 and 1 has a line of its own, with the turns that met it.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from launch import Mpi, build_ping_pong
from measure import DISTANCES, PingPong, format_seconds, median, medians_by_distance

SIDES = ("before", "after")
START_SECONDS, TURN_SECONDS = 120, 60


def _cases(tf, hvd):
    """Return case -> (function of no arguments, calls a turn, collectives a call)."""
    counter = tf.Variable(0.0)
    small, medium = tf.ones([256]), tf.ones([16 << 10])
    large, huge = tf.ones([1 << 20]), tf.ones([16 << 20])
    grads = [tf.ones([count]) for count in [64, 4096, 256, 65536, 512] * 20]

    @tf.function
    def chain(x):
        counter.assign_add(1.0)
        for _ in range(16):
            x = hvd.allreduce(x, op=hvd.Average)
        return x

    @tf.function
    def grouped(*tensors):
        counter.assign_add(1.0)
        return hvd.grouped_allreduce(list(tensors), op=hvd.Average)

    return {
        "allreduce 1 KiB, eager": (lambda: hvd.allreduce(small, op=hvd.Sum, name="e"), 300, 1),
        "allreduce 1 KiB, chain of 16": (lambda: chain(small), 60, 16),
        "allreduce 64 KiB, chain of 16": (lambda: chain(medium), 30, 16),
        "allreduce 64 MiB": (lambda: hvd.allreduce(huge, op=hvd.Sum, name="h"), 5, 1),
        "grouped_allreduce of 100, 5.6 MB": (lambda: grouped(*grads), 20, 1),
        "broadcast 64 MiB": (lambda: hvd.broadcast(huge, 0, name="b"), 5, 1),
        "allgather 1 KiB each": (lambda: hvd.allgather(small, name="s"), 60, 1),
        "allgather 4 MiB each": (lambda: hvd.allgather(large, name="g"), 20, 1),
        "alltoall 4 MiB": (lambda: hvd.alltoall(large, name="a"), 20, 1),
        "reducescatter 4 MiB": (lambda: hvd.reducescatter(large, name="r"), 20, 1),
    }


def _seconds(hvd, ping_pong, call, calls, each):
    """Return distance -> median seconds of a collective; a barrier precedes each call."""
    call()
    times, pings = [], []
    for _ in range(calls):
        before = ping_pong()
        hvd.barrier()
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) / each)
        pings.append((before, ping_pong()))
    return medians_by_distance(times, pings)


def _write(path, text):
    """Write a file that appears whole."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.rename(path)


def rank_main(folder, side):
    """Measure what the files of this side ask for, until `stop` appears."""
    import tensorflow as tf

    import smddp_tf as hvd

    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    cases = _cases(tf, hvd)
    ping_pong = PingPong(hvd.rank(), hvd.size())
    if hvd.rank() == 0:
        _write(folder / f"{side}.cases", json.dumps(list(cases)))
    turn = 0
    while not (folder / "stop").exists():
        wanted = folder / f"{side}.{turn}.wanted"
        if not wanted.exists():
            time.sleep(0.003)
            continue
        seconds = _seconds(hvd, ping_pong, *cases[wanted.read_text()])
        if hvd.rank() == 0:
            _write(folder / f"{side}.{turn}.seconds", json.dumps(seconds))
        turn += 1


class Job:
    """A job of one build."""

    def __init__(self, folder, side, root, args):
        mpi = Mpi.find(extra=["--bind-to", "none"])
        program = [sys.executable, "-P", __file__, "--folder", folder, "--side", side]
        nodes = {"SMDDP_NODES": str(args.nodes)} if args.nodes > 1 else {}
        env = mpi.environment(
            PYTHONPATH=f"{root}:{Path(__file__).parent}",
            BENCH_PING_PONG=str(build_ping_pong()),
            **nodes,
        )
        self.folder, self.side, self.turns = folder, side, 0
        self.log = folder / f"{side}.log"
        with self.log.open("w") as log:
            command = mpi.command(args.np, program)
            self.process = subprocess.Popen(command, env=env, stdout=log, stderr=log)

    def wait_for(self, name, limit):
        """Return the text of a file once it is there."""
        path, end = self.folder / f"{self.side}.{name}", time.monotonic() + limit
        while not path.exists():
            if self.process.poll() is not None or time.monotonic() > end:
                sys.exit(f"{self.side}: no {name}\n{self.log.read_text()[-4000:]}")
            time.sleep(0.003)
        return path.read_text()

    def measure(self, case):
        """Return distance -> seconds of one turn."""
        _write(self.folder / f"{self.side}.{self.turns}.wanted", case)
        seconds = json.loads(self.wait_for(f"{self.turns}.seconds", TURN_SECONDS))
        self.turns += 1
        return seconds

    def end(self):
        """Wait for the job, which has been told to stop."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(10)


def compare(jobs, case, rounds):
    """Print one case's medians and ratios, a line for each distance that turns of both met."""
    found = {side: [] for side in SIDES}
    for turn in range(rounds):
        for side in SIDES if turn % 2 == 0 else reversed(SIDES):
            found[side].append(jobs[side].measure(case))
    turns = list(zip(found["before"], found["after"], strict=True))
    for distance in DISTANCES:
        pairs = [(a[distance], b[distance]) for a, b in turns if distance in a.keys() & b]
        if not pairs:
            continue
        ratios = sorted(b / a for a, b in pairs)
        low, high = ratios[len(pairs) // 4], ratios[3 * len(pairs) // 4]
        before, after = (format_seconds(median(side)) for side in zip(*pairs, strict=True))
        print(
            f"{case:34s} {distance:8s} before {before:>9}  after {after:>9}  "
            f"ratio {median(ratios):.2f} ({low:.2f}-{high:.2f}), {len(pairs)} turns",
            flush=True,
        )


def main():
    """Start both jobs and measure in turns."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", nargs="?", type=Path, help="a checkout that was built")
    parser.add_argument("after", nargs="?", type=Path)
    parser.add_argument("--np", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=1, help="divide the ranks into so many nodes")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--folder", type=Path, help="measure on this rank (under mpirun)")
    parser.add_argument("--side", choices=SIDES)
    args = parser.parse_args()
    if args.folder:
        rank_main(args.folder, args.side)
        return
    if not args.after:
        parser.error("name two checkouts")
    print(f"{args.np} ranks, {args.nodes} node(s), {args.rounds} rounds: median ratio (quartiles)")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        roots = dict(zip(SIDES, (args.before.resolve(), args.after.resolve()), strict=True))
        jobs = {side: Job(folder, side, root, args) for side, root in roots.items()}
        try:
            cases = [json.loads(job.wait_for("cases", START_SECONDS)) for job in jobs.values()]
            for case in cases[0]:
                if args.only in case:
                    compare(jobs, case, args.rounds)
        finally:
            (folder / "stop").touch()
            for job in jobs.values():
                job.end()


if __name__ == "__main__":
    main()
