"""Ends, stops, slows and confuses ranks of real jobs, and tells what became of the others.

    run.py --runs 1000 --write docs/reliability.md
    run.py --seed 1 --only 17        one of them again

Each run starts a job of 2 to 4 ranks under mpirun (worker.py), on one node or two emulated ones.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import random
import re
import signal
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "multirank")]

import launcher  # noqa: E402
from table import report  # noqa: E402

FAULTS = ("kill", "exit", "raise", "end", "stop", "stop and continue", "slow", "mismatch")
SURVIVED = ("stop and continue", "slow", "mismatch")
TIMEOUT_SECONDS = 30  # SMDDP_TIMEOUT_SECONDS, within which a rank that stops must be noticed,
STOP_SECONDS = {False: 3, True: 10}  # so less for that; TensorFlow's ranks start far apart
LIMIT_SECONDS = 2.0
JOB_SECONDS = 240
WAITED = re.compile("waiting for|waited|no longer takes part")
TENSORFLOW_EVERY = 21  # no multiple of the number of faults


def plan_of(seed: int, number: int) -> dict:
    """What happens in a run; from its seed and number alone."""
    chosen = random.Random(f"{seed} {number}")
    ranks = chosen.randint(2, 4)
    return {
        "seed": seed * 1_000_000 + number,
        "ranks": ranks,
        "nodes": 1 if chosen.random() < 0.6 else 2,
        "victim": chosen.randrange(ranks),
        "fault": FAULTS[number % len(FAULTS)],
        "delay": round(chosen.uniform(0.0, 0.3), 3),
        "seconds": round(chosen.uniform(0.2, 1.0), 2),
        "process_set": chosen.random() < 0.3,
        "tensorflow": number % TENSORFLOW_EVERY == TENSORFLOW_EVERY - 1,
    }


def timeout_of(plan: dict) -> int:
    """SMDDP_TIMEOUT_SECONDS of the job."""
    return STOP_SECONDS[plan["tensorflow"]] if plan["fault"] == "stop" else TIMEOUT_SECONDS


@dataclasses.dataclass
class Outcome:
    """What became of a run."""

    plan: dict
    seconds: float = 0.0  # from the fault until the last survivor was told or had ended
    named: bool = True  # by every survivor: the victim's rank, or both sides of a mismatch
    near: bool = True  # the same, by those of the victim's node
    said: bool = True  # by every survivor: at least what it waited for
    code_right: bool = True
    left: list = dataclasses.field(default_factory=list)
    problem: str = ""  # what else is wrong
    output: str = ""

    def limit(self) -> float:
        """How long a survivor may take to be told."""
        return LIMIT_SECONDS + (timeout_of(self.plan) if self.plan["fault"] == "stop" else 0)

    def in_time(self) -> bool:
        """Whether all were told in time."""
        return self.seconds <= self.limit()

    def good(self) -> bool:
        """Whether nothing is wrong; other nodes cannot always name a rank, but say something."""
        said = self.near and self.said
        return self.in_time() and said and self.code_right and not self.left and not self.problem


def _is_alive(pid: int) -> bool:
    """Whether a rank of ours still runs under that number (mpirun has not collected a zombie)."""
    return launcher.runs(pid, "worker.py", "fork_server.py")


class Watch(threading.Thread):
    """Notes when each rank's process ended."""

    def __init__(self, folder) -> None:
        super().__init__(daemon=True)
        self.folder, self.ended, self.done = folder, {}, threading.Event()

    def pids(self) -> dict:
        """Rank -> its process."""
        return {int(p.name[3:]): int(p.read_text()) for p in self.folder.glob("pid*")}

    def run(self) -> None:
        """Looks every 10 ms, and once more at the end."""
        last = False
        while not last:
            last = self.done.wait(0.01)
            for rank, pid in self.pids().items():
                if rank not in self.ended and not _is_alive(pid):
                    self.ended[rank] = time.monotonic()


def _shared_memory() -> set:
    return {name for name in os.listdir("/dev/shm") if "smddp" in name}


def _left(watch, before: set) -> list:
    """What the job left behind, shortly after mpirun ended."""
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline and any(map(_is_alive, watch.pids().values())):
        time.sleep(0.05)
    left = [f"process {pid}" for pid in watch.pids().values() if _is_alive(pid)]
    for pid in watch.pids().values():
        if _is_alive(pid):
            os.kill(pid, 9)
    return left + sorted(_shared_memory() - before)


def _read(folder, kind: str) -> dict:
    """Rank -> what it wrote."""
    files = folder.glob(f"{kind}*")
    return {int(path.name[len(kind) :]): json.loads(path.read_text()) for path in files}


def _lines_of(rank: int, output: str) -> str:
    """What the library printed on a rank."""
    marked = re.escape(f"smddp_tf[rank {rank}]")
    return "\n".join(re.findall(rf"^.*{marked} (?:error|warning).*$", output, re.MULTILINE))


def _judge_fatal(outcome: Outcome, folder, watch) -> None:
    """Every survivor is told in time, and ends."""
    plan = outcome.plan
    fault, told, node = (_read(folder, kind) for kind in ("fault", "told", "node"))
    if plan["victim"] not in fault:
        outcome.problem = "it ended before the fault"
        return
    begin = fault[plan["victim"]]["at"]
    culprit = re.compile(rf"ranks? (?:\d+, )*{plan['victim']}\b")
    for rank in set(range(plan["ranks"])) - {plan["victim"]}:
        text = told.get(rank, {}).get("text", "") + "\n" + _lines_of(rank, outcome.output)
        told_at = told.get(rank, {}).get("at", watch.ended.get(rank))
        if told_at is None:
            outcome.problem = f"rank {rank} was not told and did not end"
            continue
        if told.get(rank, {}).get("survived"):
            outcome.problem = f"rank {rank} went on"
        outcome.seconds = max(outcome.seconds, told_at - begin)
        own = text.replace(f"smddp_tf[rank {rank}]", "")
        if not culprit.search(own):
            outcome.named = False
            outcome.near = outcome.near and node.get(rank) != node[plan["victim"]]
        outcome.said = outcome.said and bool(culprit.search(own) or WAITED.search(own))


def _judge_survived(outcome: Outcome, folder) -> None:
    """The job goes on with right numbers; of a mismatch all ranks are told."""
    plan, told = outcome.plan, _read(folder, "told")
    for rank in range(plan["ranks"]):
        if not told.get(rank, {}).get("survived"):
            outcome.problem = f"rank {rank}: {told.get(rank, {}).get('text') or 'no report'}"
    if plan["fault"] != "mismatch":
        return
    mismatches = _read(folder, "mismatch")
    for rank in range(plan["ranks"]):
        found = mismatches.get(rank)
        if found is None:
            outcome.named = outcome.near = outcome.said = False
            continue
        outcome.seconds = max(outcome.seconds, found["at"] - found["begin"])
        sides = f"rank {plan['victim']} has" in found["text"] and "victim's" in found["text"]
        outcome.named = outcome.named and sides and "others'" in found["text"]
        outcome.near = outcome.named
        outcome.said = outcome.said and bool(found["text"])


def run_one(plan: dict) -> Outcome:
    """Starts the job, waits for its end, and judges."""
    outcome = Outcome(plan)
    before = _shared_memory()
    env = {"SMDDP_TIMEOUT_SECONDS": str(timeout_of(plan))}
    if plan["nodes"] > 1:
        env["SMDDP_NODES"] = str(plan["nodes"])
    with tempfile.TemporaryDirectory(prefix="faults") as name:
        folder = pathlib.Path(name)
        watch = Watch(folder)
        watch.start()
        python = launcher.warm_python() if plan["tensorflow"] else [sys.executable]
        worker = [HERE / "worker.py", folder, json.dumps(plan)]
        command = [*launcher.mpirun(plan["ranks"]), *python, *worker]
        code, outcome.output, timed_out = launcher.run_command(
            command, timeout=JOB_SECONDS, env=env
        )
        # Open MPI drops what a rank prints after another one ended with a code.
        outcome.output += "\n".join(path.read_text() for path in sorted(folder.glob("err*")))
        outcome.left = _left(watch, before)
        watch.done.set()
        watch.join(5)
        survived = plan["fault"] in SURVIVED
        outcome.code_right = (code == 0) == survived
        if timed_out:
            outcome.problem = f"the job had not ended after {JOB_SECONDS} s"
        elif survived:
            _judge_survived(outcome, folder)
        else:
            _judge_fatal(outcome, folder, watch)
    return outcome


def line_of(number: int, outcome: Outcome) -> str:
    """A run in a line."""
    plan = outcome.plan
    work = "TensorFlow" if plan["tensorflow"] else "core"
    text = f"run {number}: {plan['fault']}, rank {plan['victim']} of {plan['ranks']}, "
    text += f"{plan['nodes']} nodes, {work}: {outcome.seconds:.2f} s"
    text += "" if outcome.named else ", named by its node only" if outcome.near else ", not named"
    text += "" if outcome.said else ", nothing said"
    text += "" if outcome.in_time() else f", over {outcome.limit()} s"
    text += "" if outcome.code_right else ", wrong exit code"
    text += f", left {outcome.left}" if outcome.left else ""
    return text + (f", {outcome.problem}" if outcome.problem else "")


def _parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="+", metavar="RUN", help="these runs of the seed")
    parser.add_argument("--jobs", type=int, default=1, help="how many runs at a time")
    parser.add_argument("--write", type=pathlib.Path, help="a file for the table")
    return parser.parse_args()


def _run_all(args, outcomes: list) -> None:
    """Appends (number, outcome) of each run; Ctrl-C ends it, and what was done counts."""
    numbers = args.only or range(args.runs)
    launcher.warm_python()  # before any thread asks for it
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        running = [pool.submit(run_one, plan_of(args.seed, number)) for number in numbers]
        try:
            for number, run in zip(numbers, running, strict=True):
                outcomes.append((number, run.result()))
                _print(args, *outcomes[-1])
        except KeyboardInterrupt:
            print(f"interrupted in run {number}")
            pool.shutdown(cancel_futures=True)


def _print(args, number: int, outcome: Outcome) -> None:
    """A line, and all that there is of a run that went wrong or was asked for."""
    print(line_of(number, outcome), flush=True)
    if args.only or not outcome.good():
        print(outcome.output[-4000:])
        print(f"again: {sys.executable} tests/faults/run.py --seed {args.seed} --only {number}")


def main() -> int:
    """Run, print each, and the table; 1 if something is not as it should be."""
    args = _parse()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background too
    outcomes: list = []
    begin = time.monotonic()
    _run_all(args, outcomes)
    text = report(outcomes, args.seed, time.monotonic() - begin)
    print(text)
    if args.write:
        args.write.write_text(text)
    return 0 if all(outcome.good() for _, outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
