"""Runs generated programs on this rank: rank.py FOLDER, which has programs.json.

A wrong number is noted and the next program runs; an error or a hang ends the job, since the ranks
may have parted. soak.py starts another job for the programs that are left.
"""

import faulthandler
import importlib.util
import json
import pathlib
import sys
import time

import tensorflow as tf

sys.path.append(str(pathlib.Path(__file__).parents[1] / "multirank"))
from operators import meet_types
from support import Progress

import smddp_tf as hvd

PROGRAM_SECONDS = 60


def load(path):
    """The module of a program."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where AutoGraph looks for the source
    spec.loader.exec_module(module)
    return module


def problem_of(record, expected: int, step: int) -> dict:
    """What is wrong with a step's record; {} if nothing is."""
    checks, wrong, site, turn, wanted, got = (float(field) for field in record)
    found = {"step": step, "checks": int(checks), "wrong": int(wrong)}
    if wrong:
        return {**found, "site": int(site), "turn": int(turn), "wanted": wanted, "got": got}
    return {} if checks == expected else {**found, "expected checks": expected}


def sentence_of(error) -> str:
    """An error's own text, without where TensorFlow met it."""
    lines = getattr(error, "message", str(error)).splitlines()
    places = ("Graph execution error", "Detected at node", "  ", "Original stack", "\t")
    kept = [line for line in lines if line.strip() and not line.startswith(places)]
    return f"{type(error).__name__}: " + " ".join(kept)[:1200]


def run(folder, program, progress) -> None:
    """Runs one program; notes how it went."""
    seed = program["seed"]
    module = load(folder / f"program{seed}.py")
    for step, expected in enumerate(program["counts"]):
        problem = problem_of(module.run(step), expected, step)
        if problem:
            progress.write("wrong", seed, **problem)
            return
    progress.write("right", seed)


def main() -> None:
    """All programs, each with a limit, after which this rank says where it was and ends."""
    folder = pathlib.Path(sys.argv[1])
    hvd.init()
    meet_types()
    progress = Progress(folder)
    stacks = open(folder / f"stacks{hvd.rank()}", "w")
    for program in json.loads((folder / "programs.json").read_text()):
        faulthandler.dump_traceback_later(PROGRAM_SECONDS, exit=True, file=stacks)
        begin = time.monotonic()
        progress.write("begin", program["seed"])
        try:
            run(folder, program, progress)
        except Exception as error:
            progress.write("error", program["seed"], text=sentence_of(error))
            time.sleep(1)  # the others say theirs before mpirun ends them
            raise
        progress.write("took", program["seed"], seconds=round(time.monotonic() - begin, 2))
        tf.keras.backend.clear_session()
    hvd.barrier()
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
