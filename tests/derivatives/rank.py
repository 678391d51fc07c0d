"""What a rank does with the programs of a job: each in several ways, beside the model of the job.

A job goes on after wrong numbers and after what TensorFlow refuses, on all ranks alike; it ends at
any other error, and soak.py starts another one for the programs that are left.
"""

import faulthandler
import importlib.util
import json
import pathlib
import sys
import threading
import time
import traceback

import numpy as np
import tensorflow as tf
from common import DTYPE, K, numbers
from on_rank import Alone, Rank
from whole_job import Model

import smddp_tf as hvd

STEPS = 3
SECONDS = 120
THREADS = ["alpha", "beta"]
# What is known not to work, in the words of the errors.
REFUSED = [
    "because its result's shape is not known",  # in compiled functions
    "function or branch in a loop's condition",
    "Could not generate a generic TraceType",  # ForwardAccumulator with a compiled collective
    "without handle data",  # the same, in a loop
    "exception while vectorizing",  # jacobians of compiled collectives in functions and conds
    "(op type: XlaCallModule)",  # gradients of such jacobians
    "Attempting to slice scalar input",  # tf.vectorized_map of these
    "must be a compile-time constant",  # XLA's
    "must also be initialized in",  # AutoGraph's
]


def _load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _results(main, variables, x_of, first=0) -> list:
    """What each step returns, and the variables at last."""
    steps = [
        [one.numpy() for one in main(tf.constant(x_of(step), DTYPE), tf.constant(step + 1))]
        for step in range(first, first + STEPS)
    ]
    return [*steps, [one.numpy() for one in variables]]


def _input(rank: int, step: int):
    return numbers(5000 + step, rank)


def _own(step: int):
    return _input(hvd.rank(), step)


def modelled(module, sets, first=0) -> list:
    """What all ranks should get."""
    main, variables = module.build(Model(hvd.size(), sets))
    everyone = range(hvd.size())
    return _results(main, variables, lambda step: [_input(one, step) for one in everyone], first)


def _saved(main, variables, folder):
    """The program from a SavedModel."""
    holder = tf.Module()
    holder.all = variables
    spec = [tf.TensorSpec([K], DTYPE), tf.TensorSpec([], tf.int32)]
    holder.main = tf.function(main, input_signature=spec)
    path = str(folder / f"saved{hvd.rank()}")
    tf.saved_model.save(holder, path)
    loaded = tf.saved_model.load(path)
    return loaded.main, loaded.all


def _run(module, way: str, on, folder) -> list:
    """What the program gets on this rank; `on` is what it computes with."""
    main, variables = module.build(on)
    if way in ("function", "unoptimized"):
        main = tf.function(main)
    elif way == "jit":
        main = tf.function(main, jit_compile=True)
    elif way == "saved":
        main, variables = _saved(main, variables, folder)
    return _results(main, variables, _own)


def _in_threads(module, sets) -> list:
    """Runs the program in two threads at once, each with inputs of its own."""
    found = [TimeoutError(f"no result after {SECONDS} s")] * len(THREADS)

    def work(i: int, name: str) -> None:
        try:
            main, variables = module.build(Rank(sets=sets, thread=name))
            found[i] = _results(tf.function(main), variables, _own, 10 * i)
        except Exception as error:  # noqa: BLE001 - raised below
            found[i] = error

    threads = [
        threading.Thread(target=work, args=[i, name], name=name, daemon=True)
        for i, name in enumerate(THREADS)
    ]
    for one in threads[:: 1 if hvd.rank() == 0 else -1]:
        one.start()
    for one in threads:
        one.join(SECONDS)
    for one in found:
        if isinstance(one, Exception):
            raise one
    return found


def _equal(got, want) -> bool:
    """Numbers of few steps in float64, so what another order of sums changes is far below this."""
    limit = 1e-6 * (1 + np.abs(want).max())
    return got.shape == want.shape and np.allclose(got, want, rtol=0, atol=limit, equal_nan=True)


def _differences(got: list, want: list) -> list:
    """What differs, a line each; the model's vectors have the ranks' as rows."""
    found = []
    for step, pair in enumerate(zip(got, want, strict=True)):
        for i, (one, each) in enumerate(zip(*pair, strict=True)):
            if not _equal(one, each[hvd.rank()]):
                found.append(f"step {step}, result {i}: {one} instead of {each[hvd.rank()]}")
    return found


def _set(way: str) -> None:
    tf.config.run_functions_eagerly(way == "eager")
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": way == "unoptimized"})


def _alone(module, way: str, sets, folder) -> list:
    """What it gets without collectives."""
    return _run(module, way, Rank(Alone(hvd.size()), sets), folder)


def _is_tensorflows(module, way: str, sets, folder) -> bool:
    """Whether TensorFlow alone computes something else in this way than eagerly, or fails."""
    way = "function" if way == "threads" else way
    try:
        got = _alone(module, way, sets, folder)
        _set("eager")
        want = _alone(module, "eager", sets, folder)
    except Exception as error:  # noqa: BLE001 - whatever it is
        print(f"without collectives: {type(error).__name__}: {str(error)[:500]}", flush=True)
        return True
    return not all(
        _equal(one, other)
        for pair in zip(got, want, strict=True)
        for one, other in zip(*pair, strict=True)
    )


def judge(module, way: str, sets, want: dict, folder) -> tuple:
    """("right", "wrong", "refused" or "error", what there is to say)."""
    _set("function")
    if module.__name__ not in want:
        want.clear()
        want[module.__name__] = [modelled(module, sets), modelled(module, sets, 10)]
    first, second = want[module.__name__]
    try:
        _set(way)
        if way == "threads":
            got = _in_threads(module, sets)
            wrong = _differences(got[0], first) + _differences(got[1], second)
        else:
            wrong = _differences(_run(module, way, Rank(sets=sets), folder), first)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        text = traceback.format_exc()[-3000:]
        refused = any(words in str(error) for words in REFUSED)
        refused = refused or _is_tensorflows(module, way, sets, folder)
        return ("refused" if refused else "error"), text
    if wrong and _is_tensorflows(module, way, sets, folder):
        return "refused", "numbers differ without collectives"
    return ("wrong" if wrong else "right"), "\n".join(wrong[:6])


def main() -> None:
    """All programs of the job."""
    folder = pathlib.Path(sys.argv[1])
    hvd.init()
    several = [[0, 1], [1, 2]] if hvd.size() > 2 else [[0], [1]]
    sets = [(ranks, hvd.add_process_set(ranks)) for ranks in several]
    stacks = open(folder / f"stacks{hvd.rank()}", "w")
    progress = open(folder / f"progress{hvd.rank()}", "a", buffering=1)
    want: dict = {}
    for seed, way in json.loads((folder / "programs.json").read_text()):
        faulthandler.dump_traceback_later(2 * SECONDS, exit=True, file=stacks)
        progress.write(json.dumps([seed, way, "begin", ""]) + "\n")
        found, text = judge(_load(folder / f"program{seed}.py"), way, sets, want, folder)
        progress.write(json.dumps([seed, way, found, text]) + "\n")
        if found == "error":
            time.sleep(1)  # the others say theirs before mpirun ends them
            sys.exit(1)
    hvd.barrier()
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
