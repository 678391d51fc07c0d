"""Ranks on one host that no MPI has started: they meet in torch's store."""

import pytest
import torch_job

launcher = torch_job.launcher
EVERY = torch_job.EVERY


def test_collectives(tmp_path):
    """As under mpirun."""
    torch_job.torchrun(tmp_path, "ranks_collectives", "together", 3, names=EVERY)


@pytest.mark.thorough
def test_groups_end_and_begin(tmp_path):
    """The job is one of all ranks, and no MPI was begun."""
    for result in torch_job.torchrun(tmp_path, "ranks_torchrun", "twice", 2):
        assert result["sums"] == [3, 6, 12]


def test_a_rank_that_cannot_start(tmp_path):
    """All ranks raise, with that rank's sentence."""
    variables = {1: {"SMDDP_CHUNK_BYTES": "many"}}
    results = torch_job.torchrun(tmp_path, "ranks_torchrun", "refused", 3, variables=variables)
    assert [result["kind"] for result in results] == 3 * ["InitError"]
    assert all("SMDDP_CHUNK_BYTES" in result["text"] for result in results), results


@pytest.mark.thorough
def test_nodes(tmp_path):
    """Two emulated nodes of two ranks, which TCP connects."""
    env = {"SMDDP_NODES": "2"}
    torch_job.torchrun(tmp_path, "ranks_collectives", "together", 4, env=env, names=EVERY)


@pytest.mark.thorough
def test_torchrun_starts_ranks_again(tmp_path):
    """After one has ended; the second attempt meets under other keys of the same store."""
    words = ["--max-restarts", "1"]
    folder = str(tmp_path)
    for result in torch_job.torchrun(
        tmp_path, "ranks_torchrun", "fails_at_first", 2, *words, folder=folder
    ):
        assert result["sums"] == [3, 6, 12]
    assert sorted(path.name for path in tmp_path.glob("attempt*")) == ["attempt1.0", "attempt1.1"]


@pytest.mark.thorough
def test_processes_of_the_script(tmp_path):
    """torch.multiprocessing.spawn: no launcher at all."""
    torch_job.need_torch()
    body = torch_job.Body("ranks_torchrun", "spawns", {"folder": str(tmp_path), "ranks": 2})
    command = [torch_job.PYTHON, *launcher.script(body, tmp_path)]
    code, output, _ = launcher.run_command(command, timeout=120, env=torch_job.ENVIRONMENT)
    assert code == 0, output[-4000:]
    assert len(list(tmp_path.glob("spawned*"))) == 2
