"""The options of horovodrun that have a meaning here, under their names."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from typing import Any

# Option -> (variable, the factor of its value).
_VARIABLES = {
    "--timeline-filename": ("SMDDP_TIMELINE", None),
    "--fusion-threshold-mb": ("SMDDP_BUCKET_BYTES", 1 << 20),
    "--stall-check-warning-time-seconds": ("SMDDP_STALL_WARNING_SECONDS", 1),
    "--stall-check-shutdown-time-seconds": ("SMDDP_TIMEOUT_SECONDS", 1),
    "--log-level": ("SMDDP_LOG_LEVEL", None),
}
_LEVELS = {"TRACE": "debug", "FATAL": "error"}
_NEVER = 10_000_000  # seconds: about four months, the most that is accepted

# Accepted without effect, each with so many values: there is nothing to tune or to choose.
_WITHOUT_EFFECT = {
    "--mpi": 0,
    "--disable-cache": 0,
    "--cache-capacity": 1,
    "--cycle-time-ms": 1,
    "--num-nccl-streams": 1,
    "--thread-affinity": 1,
    "--gloo-timeout-seconds": 1,
    "--timeline-mark-cycles": 0,
    "--no-timeline-mark-cycles": 0,
    "--hierarchical-allreduce": 0,
    "--no-hierarchical-allreduce": 0,
    "--hierarchical-allgather": 0,
    "--no-hierarchical-allgather": 0,
    "--torus-allreduce": 0,
    "--no-torus-allreduce": 0,
    "--mpi-threads-disable": 0,
    "--no-mpi-threads-disable": 0,
    "--autotune": 0,
    "--no-autotune": 0,
    "--autotune-log-file": 1,
    "--autotune-warmup-samples": 1,
    "--autotune-steps-per-sample": 1,
    "--autotune-bayes-opt-max-samples": 1,
    "--autotune-gaussian-process-noise": 1,
    "--stall-check": 0,
    "--log-with-timestamp": 0,
    "--log-without-timestamp": 0,
    "--log-hide-timestamp": 0,
    "--no-log-hide-timestamp": 0,
}

_REFUSED = {
    "--gloo": "ranks are connected by MPI; leave it out",
    "--jsrun": "call jsrun itself, or leave it out for mpirun",
    "--config-file": "give the options on the command line",
}


def _refuse(option: str, remedy: str):
    """An argparse action that says what to use instead."""

    class Refuse(argparse.Action):
        def __call__(self, parser, namespace, values, option_string=None):
            parser.error(f"{option} of horovodrun has no meaning here: {remedy}")

    return Refuse


def _words(text: str) -> list:
    """An argparse type: words as a shell splits them."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error


def add_options(parser: argparse.ArgumentParser, number: Callable) -> None:
    """Adds them to smddprun's."""
    add = parser.add_argument_group("also understood, as horovodrun's").add_argument
    add("--start-timeout", type=number, metavar="SECONDS", help="limit for starting the ranks")
    add("--output-filename", metavar="FOLDER", help="write each rank's output to files there")
    add("-p", "--ssh-port", type=number, metavar="PORT", help="sshd's port on all hosts")
    add("-i", "--ssh-identity-file", metavar="FILE", help="ssh's key")
    add("--tcp", action="store_true", help="between hosts TCP only, whatever networks there are")
    add("--mpi-args", dest="more", type=_words, default=[], metavar="WORDS", help="for mpirun")
    add(
        "--binding-args",
        dest="binding",
        type=_words,
        metavar="WORDS",
        help='for mpirun, instead of the default, as in --binding-args="--bind-to none"',
    )
    add(
        *("--prefix-output-with-timestamp", "-prefix-timestamp"),
        dest="timestamps",
        action="store_true",
        help="begin each line of output with the time",
    )
    add("--check-build", "-cb", action="store_true", help="print what is installed and end")
    add("--no-stall-check", action="store_true", help="SMDDP_STALL_WARNING_SECONDS=0")
    for option, (variable, factor) in _VARIABLES.items():
        kind = str if factor is None else float
        add(option, dest=variable, type=kind, metavar="VALUE", help=f"sets {variable}")
    for option, values in _WITHOUT_EFFECT.items():
        several: dict[str, Any] = {"action": "append"}
        if not values:
            several = {"action": "append_const", "const": option}
        add(option, dest="without_effect", help=_HIDE, **several)
    for option, remedy in _REFUSED.items():
        add(option, nargs="*", action=_refuse(option, remedy), dest=_HIDE, help=_HIDE)


_HIDE = argparse.SUPPRESS


def variables(options: argparse.Namespace, error: Callable) -> list:
    """The (name, value) pairs that the options set; `error` is called for a value that is bad."""
    found = []
    for option, (variable, factor) in _VARIABLES.items():
        value = getattr(options, variable)
        if value is None:
            continue
        if factor is not None:
            if not 0 <= value * factor <= _NEVER * (1 << 20):
                error(f"{option} {value:g} is out of range")
            value = int(value * factor)
        if variable == "SMDDP_LOG_LEVEL":
            value = _LEVELS.get(value.upper(), value.lower())
        # Horovod's 0 means no fusion, and no limit.
        if variable == "SMDDP_BUCKET_BYTES":
            value = max(1, value)
        if variable == "SMDDP_TIMEOUT_SECONDS":
            value = value or _NEVER
        found.append((variable, str(value)))
    if options.no_stall_check:
        found.append(("SMDDP_STALL_WARNING_SECONDS", "0"))
    return found
