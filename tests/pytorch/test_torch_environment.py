"""Launchers, variables, and processes without TensorFlow."""

import json

import pytest
import torch_job

launcher = torch_job.launcher


def _by_smddprun(tmp_path, *words, env=None, name="imported"):
    """Runs a function of ranks_environment on two ranks that smddprun starts."""
    torch_job.need_torch()
    body = torch_job.Body("ranks_environment", name, {})
    command = [*torch_job.SMDDPRUN, "-np", "2", *words, torch_job.PYTHON]
    command += launcher.script(body, tmp_path)
    env = {**torch_job.ENVIRONMENT, **(env or {})}
    code, output, timed_out = launcher.run_command(command, timeout=120, env=env, folder=tmp_path)
    assert (code, timed_out) == (0, False), output[-4000:]
    return [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]


def _check(results):
    for rank, result in enumerate(results):
        assert result["before"] == [], "import smddp_tf loads a framework"
        assert result["after"] == ["torch"]
        values = result["values"]
        assert [values["RANK"], values["WORLD_SIZE"]] == [str(rank), "2"]
        assert [values["LOCAL_RANK"], values["LOCAL_WORLD_SIZE"]] == [str(rank), "2"]
        assert values["MASTER_ADDR"] == "127.0.0.1"
    ports = {result["values"]["MASTER_PORT"] for result in results}
    assert len(ports) == 1 and int(ports.pop()) > 1024


def test_mpirun(tmp_path):
    """The ranks agree on MASTER_ADDR and MASTER_PORT, so the import connects them."""
    results = torch_job.run(tmp_path, "ranks_environment", "imported", 2, cold=True).check(2)
    assert all(result["connected"] for result in results.values())
    _check([results[0], results[1]])


@pytest.mark.parametrize("words", [[], pytest.param(["--alias"], marks=pytest.mark.thorough)])
def test_smddprun(tmp_path, words):
    """Smddprun has chosen them, so the import waits for nobody."""
    results = _by_smddprun(tmp_path, *words)
    assert not any(result["connected"] for result in results)
    _check(results)


@pytest.mark.parametrize(
    "started_by",
    [
        *(pytest.param(one, marks=pytest.mark.thorough) for one in ("smddprun", "torchrun")),
        "mpirun",
    ],
)
def test_beside_gloo(tmp_path, started_by):
    """Another backend's default group, and groups of this one; a part of the ranks cannot begin."""
    if started_by == "mpirun":  # where the import has begun the job
        results = torch_job.run(tmp_path, "ranks_environment", "beside_gloo", 2).check(2)
    elif started_by == "torchrun":
        results = torch_job.torchrun(tmp_path, "ranks_environment", "beside_gloo", 2)
    else:
        results = _by_smddprun(tmp_path, name="beside_gloo")
    assert len(results) == 2
    begun = started_by == "mpirun"
    assert results[0]["begun"] == results[1]["begun"] == begun
    assert ("cannot be the first of this backend" in results[0]["refused"]) != begun


def test_other_ranks(tmp_path):
    """A group whose ranks are not the launcher's would take one rank for another."""
    results = torch_job.run(tmp_path, "ranks_environment", "other_ranks", 2).check(2)
    for rank, result in results.items():
        words = f"has rank {1 - rank} of 2, but the launcher's job has rank {rank} of 2"
        assert words in result["text"], result


@pytest.mark.thorough
def test_variables_of_the_user(tmp_path):
    """What is set stays as it is."""
    env = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29653"}
    for result in _by_smddprun(tmp_path, env=env):
        assert result["values"]["MASTER_ADDR"] == "localhost"
        assert result["values"]["MASTER_PORT"] == "29653"


def test_examples_of_docstrings(tmp_path):
    """On two ranks."""
    results = torch_job.run(tmp_path, "ranks_environment", "examples", 2).check(2)
    assert results[0]["tried"] >= 5
