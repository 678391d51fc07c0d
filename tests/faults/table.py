"""The table of tests/faults/run.py, as Markdown."""

import collections
import platform
import statistics

MEANING = {
    "kill": "SIGKILL at any moment of a collective",
    "exit": "os._exit(3) at any moment",
    "raise": "an exception between two collectives",
    "end": "sys.exit(0) between two collectives",
    "stop": "SIGSTOP for good; noticed by SMDDP_TIMEOUT_SECONDS, 3 here (10 with TensorFlow)",
    "stop and continue": "SIGSTOP, then SIGCONT within a second; nobody may fail",
    "slow": "sleeps up to a second; nobody may fail",
    "mismatch": "asks for something else; all ranks are told, and the job goes on",
}


def _row(key, outcomes) -> str:
    fault, ranks, nodes = key
    seconds = [outcome.seconds for outcome in outcomes]
    times = f"{statistics.median(seconds):.2f} | {max(seconds):.2f}"
    if fault in ("slow", "stop and continue"):
        times = "- | -"

    def share(of) -> str:
        return f"{sum(map(of, outcomes))}/{len(outcomes)}"

    cells = [
        fault,
        str(ranks),
        str(nodes),
        str(len(outcomes)),
        times,
        share(lambda outcome: outcome.in_time()),
        share(lambda outcome: outcome.named),
        share(lambda outcome: outcome.near),
        share(lambda outcome: outcome.said),
        share(lambda outcome: outcome.code_right),
        share(lambda outcome: not outcome.left),
        share(lambda outcome: not outcome.problem),
    ]
    return "| " + " | ".join(cells) + " |"


HEAD = """\
| fault | ranks | nodes | runs | told, s: median | worst | in time | rank named by all | \
by its node | that or what was waited for | exit code | nothing left | otherwise right |
|---|---|---|---|---|---|---|---|---|---|---|---|---|"""


def report(outcomes, seed: int, seconds: float) -> str:
    """The file docs/reliability.md; outcomes are pairs of a run's number and its Outcome."""
    groups: dict = collections.defaultdict(list)
    for _, outcome in outcomes:
        plan = outcome.plan
        groups[(list(MEANING).index(plan["fault"]), plan["ranks"], plan["nodes"])].append(outcome)
    rows = [_row((list(MEANING)[key[0]], *key[1:]), groups[key]) for key in sorted(groups)]
    bad = [number for number, outcome in outcomes if not outcome.good()]
    with_tensorflow = sum(outcome.plan["tensorflow"] for _, outcome in outcomes)
    meanings = [f"- {fault}: {meaning}." for fault, meaning in MEANING.items()]
    return "\n".join(
        [
            "# Reliability",
            "",
            "What happens to the others when something happens to one rank: real processes under",
            "mpirun, on one node and on two emulated ones (`SMDDP_NODES=2`). Written by",
            "",
            f"    .venv/bin/python tests/faults/run.py --runs {len(outcomes)} --seed {seed} "
            "--write docs/reliability.md",
            "",
            f"on {platform.machine()} in {seconds / 60:.0f} minutes; {with_tensorflow} runs "
            "trained with TensorFlow, the others used the core.",
            "A run is repeated by `--only NUMBER`.",
            "",
            *meanings,
            "",
            "Told: from the fault until the last survivor has an error or has ended. In time:",
            "within 2 s of it, or of the timeout where a rank stops for good. Between nodes nobody",
            "can tell that a rank was killed or stopped: the launcher ends the others, which then",
            "print what they waited for; or a rank of its node tells them, and they name that one.",
            "",
            HEAD,
            *rows,
            "",
            f"{len(outcomes)} runs, {len(bad)} failures"
            + (f": {', '.join(map(str, bad))}." if bad else "."),
            "",
        ]
    )
