"""Runs functions of the ranks_*.py here on ranks whose Python has PyTorch.

The folder is not called torch: it would be found in torch's place where that is not installed.
"""

import dataclasses
import functools
import json
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "multirank"))

import launcher  # noqa: E402

ENVIRONMENT = {"PYTHONPATH": f"{launcher.ROOT}:{HERE}", "PYTHONWARNINGS": "ignore"}


@functools.cache
def _why_not(modules: str) -> str:
    command = [sys.executable, "-c", f"import {modules}"]
    code, output, _ = launcher.run_command(command, timeout=120)
    return "" if code == 0 else (output.strip().splitlines() or ["no output"])[-1]


def need(modules: str) -> None:
    """Skips the test if this Python cannot import these modules, given with commas."""
    if _why_not(modules):
        pytest.skip(f"`make test-torch` runs it; here: {_why_not(modules)}")


def need_torch() -> None:
    """Skips the test if this Python has no PyTorch."""
    need("torch.distributed")


@dataclasses.dataclass
class Body:
    """A function of a module here, with its arguments; harness.py calls it on each rank."""

    module: str
    name: str
    arguments: dict

    def words(self) -> list:
        """For harness.py."""
        return [self.module, self.name, json.dumps(self.arguments)]


def run(tmp_path, module, name, ranks, env=None, timeout=180, **arguments) -> launcher.Job:
    """Runs MODULE.NAME(**arguments) on every rank."""
    need_torch()
    body = Body(module, name, arguments)
    env = {**ENVIRONMENT, **(env or {})}
    return launcher.run_ranks(body, ranks, tmp_path, env=env, timeout=timeout, cold=True)


def torchrun(tmp_path, module, name, ranks, *words, env=None, **arguments) -> list:
    """Runs MODULE.NAME(**arguments) on ranks that torchrun starts, without MPI.

    Such ranks end well after a failure that they have caught, where MPI ends them all.

    Returns:
      What the ranks have reported, by rank.
    """
    need_torch()
    body = Body(module, name, arguments)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), *words, *launcher.script(body, tmp_path)]
    env = {**ENVIRONMENT, **(env or {})}
    code, output, timed_out = launcher.run_command(command, timeout=180, env=env)
    assert (code, timed_out) == (0, False), output[-4000:]
    found = (tmp_path / f"rank{rank}.json" for rank in range(ranks))
    return [json.loads(path.read_text()) for path in found if path.exists()]
