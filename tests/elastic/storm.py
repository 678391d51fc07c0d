"""A storm of faults: kills, stops and confuses the ranks of elastic jobs while they train.

    storm.py --faults 500 --write docs/elastic-faults.md
    storm.py --seed 1 --only 17        a job of it again
    storm.py --hosts --faults 60       on three hosts of namespaces, which are lost and cut off too

Each job trains storm_training.py on 2 to 4 ranks under smddprun, and suffers several faults, one
after the other. At its end each sample has to count once, and all weights have to be equal.
"""

import argparse
import contextlib
import dataclasses
import json
import pathlib
import random
import signal
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "multirank")]

import numpy as np  # noqa: E402
import storm_numbers  # noqa: E402
from storm_faults import KINDS, settle  # noqa: E402
from storm_hosts import HOST_KINDS, HOSTS, OF_HOSTS, Hosts, HostsJob, why_not  # noqa: E402
from storm_job import TIMEOUT_SECONDS, HangError, Job  # noqa: E402
from storm_table import report  # noqa: E402

FAULTS_PER_JOB = 10  # two jobs have all kinds
COLD_EVERY = 6  # of these jobs one has ranks that import TensorFlow themselves
TOLERANCE = 1e-5


def plan_of(seed: int, number: int, hosts: bool = False) -> dict:
    """A job; from its seed and number alone. Two jobs after each other have all kinds."""
    kinds = list(HOST_KINDS if hosts else KINDS)
    random.Random(f"{seed} {number // 2}").shuffle(kinds)
    half = len(kinds) // 2
    of_this = kinds[half:] if number % 2 else kinds[:half]
    return {
        "seed": f"{seed} {number}",
        "how": ("loop", "fit")[(number + number // 2) % 2],
        "cold": hosts or number % COLD_EVERY == COLD_EVERY - 1,
        "hosts": hosts,
        "patience": 1,
        "kinds": (of_this * 2)[: max(FAULTS_PER_JOB, len(of_this))],
    }


@dataclasses.dataclass
class Outcome:
    """What became of a job."""

    plan: dict
    seconds: list = dataclasses.field(default_factory=list)  # of each fault
    problems: list = dataclasses.field(default_factory=list)
    stacks: str = ""
    output: str = ""
    steps: int = 0

    def good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def slow(self) -> bool:
        """Whether ranks waited for one that was not stopped for as long as if it were."""
        pairs = zip(self.plan["kinds"], self.seconds, strict=False)
        soon = [seconds for name, seconds in pairs if "stop" not in name and name not in OF_HOSTS]
        return any(seconds > TIMEOUT_SECONDS for seconds in soon)


def _suffer(job, plan: dict, outcome: Outcome) -> None:
    """The faults, one after the other."""
    settle(job)
    for number, name in enumerate(plan["kinds"]):
        chosen = random.Random(f"{plan['seed']} {number}")
        # Often another fault comes before the ranks of the one before were replaced.
        if chosen.random() < 0.6:
            settle(job)
        else:
            job.wait(job.settled, "two ranks that step")
        time.sleep(chosen.uniform(0, 0.5))
        try:
            outcome.seconds.append(HOST_KINDS.get(name, KINDS.get(name))[0](job, chosen))
        except HangError as error:
            raise HangError(f"fault {number} ({name}): {error}") from error
    settle(job)


def _judge(job, outcome: Outcome) -> None:
    """What the ranks have left has to be right."""
    results = [json.loads(path.read_text()) for path in sorted(job.folder.glob("result*"))]
    slots = {result["slot"] for result in results}
    say = outcome.problems.append
    if slots != set(job.members()):
        say(f"slots {sorted(slots)} have ended well, and {job.members()} trained last")
    if job.lost() - job.victims:
        say(f"slots {sorted(job.lost() - job.victims)} were lost, though nothing was done to them")
    for result in results:
        wanted = storm_numbers.sums(result["epochs"])
        if result["sums"] != wanted:
            say(f"slot {result['slot']} has sums {result['sums']}, not {wanted}")
        if len(set(result["traces"])) > 1:
            say(f"slot {result['slot']} traced anew: {result['traces']}")
    for result in results[1:]:
        if (result["weights"], result["epochs"]) != (results[0]["weights"], results[0]["epochs"]):
            say(f"slots {results[0]['slot']} and {result['slot']} have different weights")
    if results:
        outcome.steps = results[0]["epochs"] * storm_numbers.BATCHES
        reference = storm_numbers.trained(results[0]["epochs"])
        pairs = zip(results[0]["weights"], reference, strict=True)
        error = max(float(np.abs(np.array(one) - other).max()) for one, other in pairs)
        if not error < TOLERANCE:
            say(f"the weights differ from those of one process by {error:.2g}")


def run_one(plan: dict) -> Outcome:
    """Starts the job, has it suffer, and judges."""
    outcome = Outcome(plan)
    with contextlib.ExitStack() as ending:
        folder = tempfile.TemporaryDirectory(prefix="storm", ignore_cleanup_errors=True)
        words = [plan["how"], pathlib.Path(ending.enter_context(folder))]
        words += [plan["cold"], plan["patience"]]
        if plan.get("hosts"):
            job = HostsJob(ending.enter_context(Hosts(HOSTS)), *words)
        else:
            job = Job(*words)
        try:
            _suffer(job, plan, outcome)
            code = job.end()
            if code != 0:
                outcome.problems.append(f"exit code {code}")
            outcome.problems += [f"left behind: {what}" for what in job.left()]
            _judge(job, outcome)
        except HangError as error:
            outcome.problems.append(str(error))
        finally:
            if not outcome.good() or outcome.slow():
                outcome.stacks = job.stacks()
            with contextlib.suppress(ProcessLookupError):
                job.smddprun.send_signal(signal.SIGCONT)
            job.kill()
        outcome.output = job.output()
    return outcome


def line_of(number: int, outcome: Outcome) -> str:
    """A job in a line."""
    plan = outcome.plan
    start = ", cold" if plan["cold"] else ""
    pairs = zip(plan["kinds"], outcome.seconds, strict=False)
    faults = ", ".join(f"{name} {seconds:.2f}" for name, seconds in pairs)
    text = f"job {number} ({plan['how']}{start}, {outcome.steps} steps): {faults}"
    return "; ".join([text, *outcome.problems])


def _parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=500, help="how many in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="+", metavar="JOB", help="these jobs of the seed")
    parser.add_argument("--hosts", action="store_true", help="between hosts; needs root")
    parser.add_argument("--write", type=pathlib.Path, help="a file for the table")
    return parser.parse_args()


def main() -> int:
    """Run, print each, and the table; 1 if something is not as it should be."""
    args = _parse()
    if args.hosts and why_not():
        sys.exit(why_not())
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background too
    begin, outcomes = time.monotonic(), []
    with contextlib.suppress(KeyboardInterrupt):
        for number in args.only or range(-(-args.faults // FAULTS_PER_JOB)):
            outcome = run_one(plan_of(args.seed, number, args.hosts))
            outcomes.append((number, outcome))
            print(line_of(number, outcome), flush=True)
            if args.only or outcome.slow() or not outcome.good():
                print(outcome.stacks, outcome.output[-12000:], sep="\n")
                again = "--hosts " * args.hosts + f"--seed {args.seed} --only {number}"
                print(f"again: tests/elastic/storm.py {again}")
    text = report(outcomes, args.seed, time.monotonic() - begin, args.hosts)
    print(text)
    if args.write:
        args.write.write_text(text)
    return 0 if all(outcome.good() for _, outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
