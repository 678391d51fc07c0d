"""The options of elastic jobs, and what they must be. Horovodrun's, under their names."""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import shlex
import shutil
from collections.abc import Callable, Mapping

from smddp_tf.launch import LaunchError, command, supervise
from smddp_tf.launch.elastic.discovery import Discovery
from smddp_tf.launch.elastic.driver import Limits
from smddp_tf.launch.elastic.job import FOR_RANKS, HOST, SLOT
from smddp_tf.launch.hosts import Host
from smddp_tf.launch.machine import Machine

_MAKE_ELASTIC = {
    "--min-np": "least",
    "--max-np": "most",
    "--host-discovery-script": "discovery_script",
}
_DETAILS = {
    "--slots-per-host": "slots_per_host",
    "--elastic-timeout": "elastic_timeout",
    "--fence-after": "fence_after",
    "--reset-limit": "reset_limit",
    "--blacklist-cooldown-range": "cooldown",
}
_MOST_SECONDS = 10_000_000.0


def _seconds(text: str) -> float:
    """An argparse type."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= _MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time in seconds, above 0")
    return seconds


def add_options(parser: argparse.ArgumentParser, number: Callable, from_zero: Callable) -> None:
    """Adds them to smddprun's; the callables are argparse types for whole numbers from 1 and 0."""
    add = parser.add_argument_group("elastic jobs, whose ranks may come and go").add_argument
    add(
        *("--min-np", "--min-num-proc"),
        dest="least",
        type=number,
        metavar="N",
        help="go on in the ranks that are left, if they are so many; default: those of -np",
    )
    add(
        *("--max-np", "--max-num-proc"),
        dest="most",
        type=number,
        metavar="N",
        help="the most ranks; default: as many as the script says",
    )
    add(
        "--host-discovery-script",
        dest="discovery_script",
        metavar="PATH",
        help="called each second; prints `host` or `host:slots` lines, by which ranks come and go",
    )
    add(
        "--slots-per-host",
        type=from_zero,
        metavar="N",
        help="of hosts that the script prints without; default: 1",
    )
    add(
        "--elastic-timeout",
        type=_seconds,
        metavar="S",
        help="how long to wait for --min-np ranks; default: 600",
    )
    add(
        "--fence-after",
        type=_seconds,
        metavar="S",
        help="kill a rank that is silent so long while others wait to go on; default: 60",
    )
    add(
        "--reset-limit",
        type=from_zero,
        metavar="N",
        help="end the job if its ranks change more often",
    )
    add(
        "--blacklist-cooldown-range",
        dest="cooldown",
        type=_seconds,
        nargs=2,
        metavar=("MIN", "MAX"),
        help="wait so long to start a rank again if several have failed to start; default: 1 60",
    )


def is_elastic(given: argparse.Namespace) -> bool:
    """Whether the options ask for an elastic job.

    Raises:
      LaunchError: they do not, but some say how it is to be.
    """
    if any(getattr(given, name) is not None for name in _MAKE_ELASTIC.values()):
        return True
    for option, name in _DETAILS.items():
        if getattr(given, name) is not None:
            raise LaunchError(
                f"{option} is for elastic jobs; give {', '.join(_MAKE_ELASTIC)}, or leave it out"
            )
    return False


def limits(given: argparse.Namespace, job: command.Job) -> Limits:
    """What the driver is to keep to.

    Raises:
      LaunchError: the options contradict each other, or an elastic job cannot do them.
    """
    refused = {
        "--srun": (given.srun, "mpirun starts each rank; leave it out"),
        "--sagemaker": (given.sagemaker, "leave it out, or use --max-restarts"),
        "--cores-per-rank": (
            given.cores_per_rank,
            "each rank's mpirun would take the same cores; leave it out",
        ),
    }
    for option, (value, remedy) in refused.items():
        if value:
            raise LaunchError(f"an elastic job takes no {option}: {remedy}")
    least = given.least or job.ranks
    if not least <= job.ranks <= (given.most or math.inf):
        most = f" and --max-np {given.most}" if given.most else ""
        raise LaunchError(
            f"-np {job.ranks} is not between --min-np {least}{most}; it is how many ranks begin"
        )
    cooldown = tuple(given.cooldown or (1.0, 60.0))
    if cooldown[0] > cooldown[1]:
        given_range = f"--blacklist-cooldown-range {cooldown[0]:g} {cooldown[1]:g}"
        raise LaunchError(f"{given_range}: its MIN is above its MAX; swap them")
    return Limits(
        start=job.ranks,
        least=least,
        most=given.most or math.inf,
        timeout=given.elastic_timeout or 600.0,
        fence=given.fence_after or 60.0,
        cooldown=(cooldown[0], cooldown[1]),
        resets=math.inf if given.reset_limit is None else given.reset_limit,
        replaces=given.discovery_script is not None,
    )


def of_a_slot(job: command.Job, elsewhere: bool) -> command.Job:
    """The job of one slot's mpirun, here or `elsewhere`: on HOST.

    What it writes to files is in a folder for each slot. Ranks on other hosts get the variables by
    their names: no command line shows the secret.
    """
    folder = job.output_folder and os.path.join(job.output_folder, SLOT)
    return dataclasses.replace(
        job,
        ranks=1,
        tag_output=False,
        output_folder=folder,
        hosts=[Host(HOST, 1)] if elsewhere else [],
        forwarded=[*job.forwarded, *FOR_RANKS],
    )


def listed_hosts(job: command.Job, machine: Machine) -> list[tuple[str, float]]:
    """(name, ranks) of each host; without a list this machine, with any number."""
    found = [(host.name, float(host.slots or 1)) for host in job.hosts]
    return found or [(machine.name, math.inf)]


def discovery(
    given: argparse.Namespace, environment: Mapping[str, str]
) -> Callable[[], Discovery] | None:
    """Makes the script's calls, if there is one.

    Raises:
      LaunchError: there is no such program.
    """
    if given.discovery_script is None:
        return None
    try:
        words = shlex.split(given.discovery_script)
    except ValueError as error:
        raise LaunchError(f"--host-discovery-script {given.discovery_script}: {error}") from error
    if not words or shutil.which(words[0], path=environment.get("PATH")) is None:
        raise LaunchError(
            f"--host-discovery-script {given.discovery_script}: there is no such program, or it "
            "may not be executed (chmod +x); a path has a slash, as ./hosts.sh"
        )
    slots = 1 if given.slots_per_host is None else given.slots_per_host
    return lambda: Discovery(words, slots, supervise.say)
