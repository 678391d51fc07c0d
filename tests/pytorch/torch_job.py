"""Runs functions of the ranks_*.py here on ranks whose Python has PyTorch.

The folder is not called torch: it would be found in torch's place where that is not installed.
"""

import dataclasses
import importlib.util
import json
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "multirank"))

import launcher  # noqa: E402

# This Python if it has PyTorch, else that of the environment that `make test` makes for it.
OWN = launcher.ROOT / ".venv-torch" / "bin" / "python"
PYTHON = sys.executable if importlib.util.find_spec("torch") else str(OWN)
SMDDPRUN = [PYTHON, "-m", "smddp_tf.launch"]
ENVIRONMENT = {"PYTHONPATH": f"{launcher.ROOT}:{HERE}", "PYTHONWARNINGS": "ignore"}
# What ranks have from the start: most bodies train, and the first step imports the second.
MODULES = "torch.distributed,torch._dynamo"
EVERY = ["reductions", "moves", "exchanges", "many_at_once"]  # collectives, for `together`


def need(modules: str) -> None:
    """Skips the test if PyTorch's Python cannot import these modules, given with commas."""
    reason = launcher.why_not(PYTHON, modules)
    if reason:
        pytest.skip(f"`make test-torch` runs it; here: {reason}")


def need_torch() -> None:
    """Skips the test if there is no PyTorch."""
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


def run(
    tmp_path, module, name, ranks, env=None, timeout=180, cold=False, **arguments
) -> launcher.Job:
    """Runs MODULE.NAME(**arguments) on every rank; see launcher.run_ranks."""
    need_torch()
    options = {"env": {**ENVIRONMENT, **(env or {})}, "timeout": timeout, "cold": cold}
    options |= {"python": PYTHON, "modules": MODULES}
    return launcher.run_ranks(Body(module, name, arguments), ranks, tmp_path, **options)


def torchrun(tmp_path, module, name, ranks, *words, env=None, **arguments) -> list:
    """Runs MODULE.NAME(**arguments) on ranks that torchrun starts, without MPI.

    Such ranks end well after a failure that they have caught, where MPI ends them all.

    Returns:
      What the ranks have reported, by rank.
    """
    need_torch()
    body = Body(module, name, arguments)
    command = [PYTHON, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), *words, *launcher.script(body, tmp_path)]
    env = {**ENVIRONMENT, **(env or {})}
    code, output, timed_out = launcher.run_command(command, timeout=180, env=env)
    assert (code, timed_out) == (0, False), output[-4000:]
    found = (tmp_path / f"rank{rank}.json" for rank in range(ranks))
    return [json.loads(path.read_text()) for path in found if path.exists()]
