"""Training on ranks is training on one process."""

import pytest
import torch_job


@pytest.mark.parametrize("ranks", [2, 4])
def test_data_parallel(tmp_path, ranks):
    """DDP's modes: bit-equal weights after several steps."""
    torch_job.run(tmp_path, "ranks_training", "data_parallel", ranks).check(ranks)


@pytest.mark.parametrize(
    "name",
    ["compiled", pytest.param("collectives_in_compiled_functions", marks=pytest.mark.thorough)],
)
def test_compile(tmp_path, name):
    """torch.compile: the bits of a process that does not compile."""
    torch_job.run(tmp_path, "ranks_training", name, 2).check(2)


def test_unused_on_some_ranks(tmp_path):
    """find_unused_parameters where ranks differ."""
    torch_job.run(tmp_path, "ranks_training", "unused_on_some_ranks", 2).check(2)


def test_sharded(tmp_path):
    """ZeRO, FSDP, fully_shard, its checkpoint, and join()."""
    torch_job.run(tmp_path, "ranks_training", "sharded", 2).check(2)


@pytest.mark.parametrize("nodes", ["", "2"])
def test_two_dimensions(tmp_path, nodes):
    """HSDP and tensor parallelism on a mesh of two by two, by the core's groups."""
    env = {"SMDDP_NODES": nodes} if nodes else {}
    results = torch_job.run(tmp_path, "ranks_training", "two_dimensions", 4, env=env).check(4)
    assert all(one["kinds"] == ["SmddpProcessGroup"] for one in results.values()), results
