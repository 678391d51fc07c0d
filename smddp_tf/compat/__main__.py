"""python -m smddp_tf.compat [-m module | script.py] [arguments]."""

import argparse
import os
import runpy
import sys

from smddp_tf.compat import _install
from smddp_tf.compat.environment import adopt_horovod_environment, adopt_torch_environment


def main() -> None:
    """Runs a script or module with horovod's and smdistributed's modules provided."""
    parser = argparse.ArgumentParser(
        prog="python -m smddp_tf.compat",
        description="Runs a script that imports horovod or smdistributed, on smddp_tf.",
    )
    parser.add_argument("-m", dest="module", action="store_true", help="run a module, by name")
    parser.add_argument("program", help="a script's path, or a module's name after -m")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="for the program")
    args = parser.parse_args()
    adopt_horovod_environment()
    adopt_torch_environment()
    _install.install()
    sys.argv = [args.program, *args.arguments]
    if args.module:
        sys.path[0] = os.getcwd()
        runpy.run_module(args.program, run_name="__main__", alter_sys=True)
        return
    if not os.path.exists(args.program):
        parser.error(f"{args.program} does not exist")
    # Same as Python itself does for a script.
    sys.path[0] = os.path.dirname(os.path.abspath(args.program))
    runpy.run_path(args.program, run_name="__main__")


if __name__ == "__main__":
    main()
