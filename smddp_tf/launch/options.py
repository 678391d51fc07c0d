"""smddprun's command line. Pure: words -> options."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence

from smddp_tf._version import __version__
from smddp_tf.launch import horovodrun
from smddp_tf.launch.elastic import options as elastic
from smddp_tf.launch.hosts import MOST_RANKS

_DESCRIPTION = """Starts a training script on several ranks: calls mpirun, or srun, with defaults
that suit training. Ranks may use all cores of their host, fill hosts in order, and get the
variables that matter on all hosts. The hosts come from -H or --hostfile, else from the Slurm
allocation or the SageMaker job around; else it is this one."""

_EPILOG = """examples:
  smddprun -np 4 python train.py
  smddprun -H host1:8,host2:8 --nic eth0 python train.py --epochs 3
  smddprun -np 4 --max-restarts 2 python train.py
  smddprun -np 4 -- --mca btl_tcp_links 2 python train.py

The first word that is no option begins the program. Words after a `--` in front of it go to mpirun
unchanged: mpirun's own options, then the program. If mpirun has started smddprun itself, as
SageMaker's toolkit does, smddprun only becomes the program."""


def _whole(least: int, most: float = math.inf):
    """An argparse type: a whole number from least to most."""

    def number(text: str) -> int:
        if not re.fullmatch("[0-9]+", text) or not least <= int(text) <= most:
            limit = f"from {least} to {most}" if most < math.inf else f">= {least}"
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {limit}")
        return int(text)

    return number


def _variable(text: str) -> tuple:
    """NAME=value as (name, value), NAME as (name, None)."""
    name, equals, value = text.partition("=")
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE or NAME")
    return name, (value if equals else None)


def _parser(kind: type) -> argparse.ArgumentParser:
    parser = kind(
        prog="smddprun",
        usage="smddprun [options] [-- mpirun's options] program [arguments]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    number = _whole(1, MOST_RANKS)
    add("-np", "-n", "--num-proc", dest="ranks", type=number, metavar="N", help="number of ranks")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-H", "--hosts", "--host", metavar="A:8,B:8", help="hosts and their slots")
    where.add_argument(
        "-hostfile", "--hostfile", metavar="FILE", help="lines as `a slots=8`, or `a:8`"
    )
    add(
        *("--nic", "--network-interface", "--network-interfaces"),
        dest="nics",
        action="append",
        metavar="NAME",
        help="network interface between hosts, such as eth0; several with commas",
    )
    add(
        *("-x", "--env"),
        dest="variables",
        action="append",
        default=[],
        type=_variable,
        metavar="NAME[=VALUE]",
        help="a variable for all ranks; without a value, as it is here",
    )
    add("--alias", action="store_true", help="for scripts that import horovod or smdistributed")
    add("--cores-per-rank", type=number, metavar="N", help="bind each rank to N cores of its own")
    add(
        "--max-restarts",
        type=_whole(0),
        default=0,
        metavar="N",
        help="start a job that failed again, up to N times, with SMDDP_RESTART=1, 2, ...",
    )
    add(
        "--tag-output",
        action=argparse.BooleanOptionalAction,
        help="begin each line of output with its rank; default: unless the output is a terminal",
    )
    add(
        "--sagemaker",
        action="store_true",
        help="as the command of a training container without SageMaker's toolkit, on every host",
    )
    add("--srun", action="store_true", help="launch with srun instead of mpirun")
    add("--mpirun", metavar="PATH", help="the mpirun to use; default: that of PATH")
    add("--dry-run", action="store_true", help="print the command and end")
    add("--verbose", action="store_true", help="show the command, and mpirun's map of the ranks")
    add("-v", "--version", action="version", version=f"smddprun of smddp_tf {__version__}")
    elastic.add_options(parser, number, _whole(0))
    horovodrun.add_options(parser, number)
    add("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def parse(words: Sequence[str], kind: type = argparse.ArgumentParser) -> argparse.Namespace:
    """The options; `program` has the program's words and `passed` those for mpirun, unchanged.

    Ends the process with a message if the words are not understood, or does what error() of a
    `kind` of parser does.
    """
    parser = _parser(kind)
    words = list(words)
    cut = words.index("--") if "--" in words else len(words)
    # A `--` behind the program belongs to the program.
    options = parser.parse_args(words[:cut])
    if options.alias and options.program[:1] == ["horovodrun"]:
        # The command that this one stands for; what follows are its options.
        del words[cut - len(options.program)]
        return parse(words, kind)
    options.passed = []
    if options.program:
        options.program += words[cut:]
    else:
        options.passed = words[cut + 1 :]
    if not options.program and not options.passed and not options.check_build:
        parser.error("no program; as in `smddprun -np 4 python train.py`")
    if options.alias and not options.program:
        parser.error("--alias takes the program directly, not behind `--`")
    if options.srun and options.passed:
        parser.error("`--` is for mpirun's options; with --srun, set SLURM_* variables instead")
    options.nic = ",".join(options.nics) if options.nics else None
    # Of a variable that is given twice the last value holds; launchers differ in that.
    given = [*options.variables, *horovodrun.variables(options, parser.error)]
    options.variables = list(dict(given).items())
    return options
