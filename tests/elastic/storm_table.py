"""The table of storm.py, as Markdown."""

import collections
import os
import platform
import statistics

from storm_faults import KINDS
from storm_hosts import HOST_KINDS, HOSTS
from storm_job import FENCE_SECONDS, TIMEOUT_SECONDS

HEAD = """\
| fault | faults | median, s | p95 | worst |
|---|---|---|---|---|"""


def _row(name: str, seconds: list) -> str:
    ordered = sorted(seconds)
    late = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    times = [statistics.median(ordered), late, ordered[-1]]
    cells = [name, str(len(seconds)), *(f"{value:.2f}" for value in times)]
    return "| " + " | ".join(cells) + " |"


def _head(words: str, name: str, hosts: bool) -> list:
    """What was done, and how to do it again."""
    where = f"{HOSTS} hosts, which are namespaces of one machine" if hosts else "one host"
    return [
        "# Faults of elastic jobs" + " on several hosts" * hosts,
        "",
        "What a fault costs the ranks of an [elastic job](elastic.md) that survive it: real",
        f"processes on {where}, two to four ranks, several",
        "faults in each job. Written by",
        "",
        f"    python tests/elastic/storm.py {words} --write docs/{name}",
        "",
    ]


def _processes(outcomes: list, hosts: bool) -> list:
    """How ranks start, and of how many steps this is."""
    steps = sum(outcome.steps for _, outcome in outcomes)
    cold = sum(outcome.plan["cold"] for _, outcome in outcomes)
    text = f"{len(outcomes)} jobs did {steps} steps. "
    if hosts:
        return [text + "Each rank imports TensorFlow."]
    text += f"In {cold} of them each rank imports TensorFlow, else it is"
    return [text, "forked from a process that has done so."]


def report(outcomes: list, seed: int, seconds: float, hosts: bool = False) -> str:
    """The file; outcomes are pairs of a job's number and its Outcome."""
    groups: dict = collections.defaultdict(list)
    kinds = HOST_KINDS if hosts else KINDS
    for _, outcome in outcomes:
        for name, measured in zip(outcome.plan["kinds"], outcome.seconds, strict=False):
            groups[name].append(measured)
    faults = sum(map(len, groups.values()))
    bad = [number for number, outcome in outcomes if not outcome.good()]
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    words = "--hosts " * hosts + f"--faults {faults} --seed {seed}"
    name = "elastic-faults" + "-hosts" * hosts + ".md"
    return "\n".join(
        [
            *_head(words, name, hosts),
            f"on {platform.machine()} with {os.cpu_count()} cores (load {load}) in "
            f"{seconds / 60:.0f} minutes. A job is repeated by `--only NUMBER`.",
            *_processes(outcomes, hosts),
            "",
            *(f"- {name}: {meaning}." for name, (_, meaning) in kinds.items() if groups[name]),
            "",
            f"`SMDDP_TIMEOUT_SECONDS={TIMEOUT_SECONDS}`, `--fence-after {FENCE_SECONDS}`. Where a "
            "rank is lost, the times are from the",
            "fault, of several the last, to the moment when all survivors have finished a step",
            "without it. Otherwise they are the longest pause between two steps of a survivor.",
            "A newcomer traces its first step while the others wait: that is in some of the times.",
            "",
            HEAD,
            *(_row(name, groups[name]) for name in kinds if groups[name]),
            "",
            "After each job the sums of what each sample added are exact, so that each counted",
            "once an epoch. The weights of all ranks are equal, and within 1e-5 of those of one",
            "process. No rank has traced anew, no other rank was lost, the exit code is 0, and",
            "neither processes nor files are left.",
            "",
            f"{faults} faults in {len(outcomes)} jobs, {len(bad)} failures"
            + (f": jobs {', '.join(map(str, bad))}." if bad else "."),
            "",
        ]
    )
