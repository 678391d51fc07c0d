"""PyTorch's own distributed_test.py with this backend in gloo's place: make test-torch-suite.

    own_suite.py                     all tests with gloo, then with smddp, and what differs
    own_suite.py --only all_reduce   those whose names match

PyTorch starts processes for each test, which takes seconds. Here mpirun starts four ranks, and each
test gets a world of its own. Ranks that fail a test end their job, and the next one goes on behind
it. Tests ask for the backend's name and are told gloo's, so that none is left out.
"""

import argparse
import contextlib
import io
import json
import os
import pathlib
import re
import sys
import tempfile
import time
import unittest
import unittest.mock
from datetime import timedelta

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RANKS = 4
WORLD_SECONDS = 20  # of a collective
# What a rank says of a test at most this long after the first, or else it hangs.
HANG_SECONDS = 60
TOLD = {"BACKEND": "gloo", "INIT_METHOD": "env://"}
# What cannot pass, and why.
REASONS = {
    "test_get_backend": "it compares the backend's name with gloo's",
    "test_monitored_barrier_gloo": "PyTorch lets gloo's groups alone in; from 2.15 on, its words",
    "test_monitored_barrier_gloo_rank_0_timeout": "the same",
    "test_monitored_barrier_gloo_subgroup": "the same",
}


def _names(suite) -> list:
    return [name for name in sorted(dir(suite)) if name.startswith("test_")]


def _suite():
    """PyTorch's tests, as a class that does without the processes which PyTorch would start."""
    from torch.testing._internal.common_utils import TestCase
    from torch.testing._internal.distributed import distributed_test

    class Suite(distributed_test.DistributedTest._DistTestBase, TestCase):
        world_size = RANKS
        rank = int(os.environ["RANK"])

        @property
        def file_name(self):
            return os.path.join(os.environ["TEMP_DIR"], f"again-{self._testMethodName}")

        @property
        def init_method(self):
            return f"file://{self.file_name}"

        @property
        def destroy_pg_upon_exit(self):
            return False

    return Suite, distributed_test.Barrier


def _reason(last_line: str) -> str:
    """PyTorch's sentence for the exit status by which a test skips itself; "" of all else."""
    from torch.testing._internal.common_distributed import TEST_SKIPS

    reasons = {f"SystemExit: {skip.exit_code}": skip.message for skip in TEST_SKIPS.values()}
    return reasons.get(last_line, "")


def _outcome(case) -> list:
    """["ok", "fail" or "skip", why], of this rank."""
    result = unittest.TestResult()
    with contextlib.redirect_stdout(io.StringIO()):
        case.run(result)
    wrong = result.errors + result.failures
    if wrong:
        reason = _reason(wrong[0][1].strip().splitlines()[-1])
        return ["skip", reason] if reason else ["fail", wrong[0][1]]
    return ["skip", result.skipped[0][1]] if result.skipped else ["ok", ""]


def _agree(store, name: str, own: list) -> list:
    """The outcomes of all ranks. Raises RuntimeError if one does not tell its own."""
    store.set(f"{name}/{os.environ['RANK']}", json.dumps(own))
    keys = [f"{name}/{rank}" for rank in range(RANKS)]
    store.wait(keys, timedelta(seconds=HANG_SECONDS))
    return [json.loads(store.get(key)) for key in keys]


def _all_of(outcomes: list) -> list:
    """A test fails if one rank fails, and passes if one passes: others may have no part in it."""
    for kind in ("fail", "ok", "skip"):
        for rank, (what, why) in enumerate(outcomes):
            if what == kind:
                return [kind, f"rank {rank}: {why}" if why else ""]
    raise AssertionError(outcomes)


def run_rank(backend: str, folder: pathlib.Path, names: list) -> None:
    """Runs the tests on this rank, until one fails."""
    import smddp_tf.torch  # noqa: F401 - tells gloo, too, what rank this is

    os.environ.update(TOLD, TEMP_DIR=str(folder))
    import torch.distributed as dist

    suite, barrier = _suite()
    first = os.environ["RANK"] == "0"
    store = dist.FileStore(str(folder / "store"), RANKS)
    if first:
        barrier.init()
    for name in names:
        if first:
            (folder / "now").write_text(name)
        limit = timedelta(seconds=WORLD_SECONDS)
        at = {"init_method": f"file://{folder}/world-{name}", "rank": suite.rank}
        dist.init_process_group(backend, world_size=RANKS, timeout=limit, **at)
        own = _outcome(suite(name))
        outcomes = _agree(store, name, own)
        if first:
            with (folder / "outcomes").open("a") as file:
                file.write(json.dumps([name, *_all_of(outcomes)]) + "\n")
        if any(what == "fail" for what, _ in outcomes):
            break
        if dist.is_initialized():
            dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # the world may be broken, and what waits for it would


def _read(folder: pathlib.Path) -> dict:
    path = folder / "outcomes"
    lines = path.read_text().splitlines() if path.exists() else []
    return {name: [what, why] for name, what, why in map(json.loads, lines)}


def _all_names() -> list:
    """PyTorch's tests read the environment when they are imported."""
    world = {"RANK": "0", "WORLD_SIZE": str(RANKS)}
    with unittest.mock.patch.dict(os.environ, {**TOLD, "TEMP_DIR": "/tmp", **world}):
        return _names(_suite()[0])


def run_backend(launcher, backend: str, names: list) -> dict:
    """Name -> [outcome, why], of all tests; a job that hangs or ends early fails the one it ran."""
    found = {}
    while left := [name for name in names if name not in found]:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
            folder = pathlib.Path(temporary)
            (folder / "barrier").mkdir()
            (folder / "test_dir").mkdir()
            (folder / "names").write_text(json.dumps(left))
            words = [sys.executable, __file__, "--rank", backend, "--folder", temporary]
            environment = {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
            command = [*launcher.mpirun(RANKS), *words]
            code, output, _ = launcher.run_command(command, timeout=1200, env=environment)
            outcomes = _read(folder)
            if not outcomes or (code and not any(one[0] == "fail" for one in outcomes.values())):
                now = folder / "now"
                running = now.read_text() if now.exists() else left[0]
                outcomes[running] = ["fail", f"exit status {code}: {output[-1500:]}"]
            found |= outcomes
        print(f"{backend}: {len(found)} of {len(names)}", flush=True)
    return found


def _short(why: str) -> str:
    """The line with the error, of a traceback."""
    lines = [line for line in why.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exit|Exception)\b", line)]
    return ([*lines, *errors] or [""])[-1][:300]


def _print_differences(gloo: dict, own: dict) -> int:
    """How many tests pass with gloo only, without a reason that is known."""
    unexplained = 0
    for name in gloo:
        if gloo[name][0] == own[name][0]:
            continue
        worse = gloo[name][0] == "ok"
        unexplained += worse and name not in REASONS
        print(f"{name}: gloo {gloo[name][0]}, smddp {own[name][0]}", REASONS.get(name, ""))
        print(f"    {_short((own if worse else gloo)[name][1])}")
    return unexplained


def main() -> int:
    """Both backends in turn; 1 if gloo passes what smddp does not, for no reason that is known."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=".", help="a regular expression")
    parser.add_argument("--rank", metavar="BACKEND", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--write", type=pathlib.Path, help="a file for all outcomes, as JSON")
    args = parser.parse_args()
    if args.rank:
        run_rank(args.rank, args.folder, json.loads((args.folder / "names").read_text()))
    sys.path.insert(0, str(HERE.parent / "multirank"))
    import launcher

    names = [name for name in _all_names() if re.search(args.only, name)]
    if not names:
        parser.error(f"no test's name has {args.only}")
    found, seconds = {}, {}
    for backend in ("gloo", "smddp"):
        start = time.monotonic()
        found[backend] = run_backend(launcher, backend, names)
        seconds[backend] = time.monotonic() - start
    for backend, outcomes in found.items():
        kinds = [what for what, _ in outcomes.values()]
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in ("ok", "fail", "skip"))
        print(f"{backend}: {counts}, {seconds[backend]:.0f} s")
    if args.write:
        args.write.write_text(json.dumps(found, indent=1))
    passes = any(what == "ok" for what, _ in found["gloo"].values())
    if not passes:
        print("gloo passes none, so nothing is compared")
    return 1 if _print_differences(found["gloo"], found["smddp"]) or not passes else 0


if __name__ == "__main__":
    sys.exit(main())
