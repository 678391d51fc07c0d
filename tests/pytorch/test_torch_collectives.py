"""Every collective of torch.distributed on the core, against exact sums."""

import pytest
import torch_job

EVERY = ["reductions", "moves", "exchanges", "many_at_once"]


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


def test_groups(tmp_path):
    """A process set's ranks use the core, others gloo; all ranks again use the core."""
    results = torch_job.run(tmp_path, "ranks_collectives", "groups", 3).check(3)
    ours = "SmddpProcessGroup"
    assert results[0]["kinds"] == [ours, "ProcessGroup", ours]
    assert results[1]["kinds"] == ["ProcessGroup", ours]
    assert results[2]["kinds"] == [ours, ours]
