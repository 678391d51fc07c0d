"""Every collective of torch.distributed on the core, against exact sums."""

import pytest
import torch_job

EVERY = torch_job.EVERY


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_collectives(tmp_path, ranks):
    """Sync and async, all dtypes and operations, sizes that differ, many at once."""
    torch_job.run(tmp_path, "ranks_collectives", "together", ranks, names=EVERY).check(ranks)


@pytest.mark.parametrize(("name", "ranks"), [("between_two", 3), ("functional", 2)])
def test_ways_to_call(tmp_path, name, ranks):
    """Two of three ranks; as compilers trace it."""
    torch_job.run(tmp_path, "ranks_collectives", name, ranks).check(ranks)


def test_nodes(tmp_path):
    """Two nodes of two ranks, over MPI."""
    env = {"SMDDP_NODES": "2"}
    torch_job.run(tmp_path, "ranks_collectives", "together", 4, env=env, names=EVERY).check(4)
    torch_job.run(tmp_path, "ranks_views", "lists", 4, env=env).check(4)


@pytest.mark.parametrize("ranks", [2, 3])
def test_shapes(tmp_path, ranks):
    """As with other backends: numbers and lists of one number reduce together."""
    torch_job.run(tmp_path, "ranks_collectives", "shapes", ranks).check(ranks)


@pytest.mark.parametrize("name", ["side_by_side", "in_place", "lists", "conjugated"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_views(tmp_path, name, ranks):
    """Chunks are read and written in place, no other memory is; lazy views have their values."""
    torch_job.run(tmp_path, "ranks_views", name, ranks).check(ranks)


def test_groups(tmp_path):
    """The core runs the groups of a process set, of other ranks and of all ranks again."""
    results = torch_job.run(tmp_path, "ranks_collectives", "groups", 3).check(3)
    ours = "SmddpProcessGroup"
    assert [len(results[rank]["kinds"]) for rank in range(3)] == [3, 2, 2]
    assert all(set(result["kinds"]) == {ours} for result in results.values())
