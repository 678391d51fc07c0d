"""Ranks that use different layers, and call other collectives before the step."""

import pytest
import torch_job

MODULE = "ranks_layers"
# Each weight has a bucket of its own.
ENVIRONMENT = {"SMDDP_BUCKET_BYTES": "16", "SMDDP_TIMEOUT_SECONDS": "20"}


@pytest.mark.parametrize(("ranks", "nodes"), [(2, ""), (3, ""), (2, "2"), (4, "2")])
def test_other_layers(tmp_path, ranks, nodes):
    """Nobody waits for ever for what another rank reduces later."""
    env = {**ENVIRONMENT, **({"SMDDP_NODES": nodes} if nodes else {})}
    results = torch_job.run(tmp_path, MODULE, "other_layers", ranks, env=env).check(ranks)
    steps = 6 * 3 * ranks
    assert all(result["seconds"] < 5 + 0.5 * steps for result in results.values()), results


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_table_of_others(tmp_path, ranks):
    """Others wait for what this rank did not know to be sparse."""
    torch_job.run(tmp_path, MODULE, "a_table_of_others", ranks, env=ENVIRONMENT).check(ranks)


@pytest.mark.parametrize("ranks", [2, 3])
def test_two_optimizers(tmp_path, ranks):
    """Orders that differ by rank."""
    torch_job.run(tmp_path, MODULE, "two_optimizers", ranks, env=ENVIRONMENT).check(ranks)


def test_too_late(tmp_path):
    """It was sent as zeros, so it is an error on that rank."""
    results = torch_job.run(tmp_path, MODULE, "too_late", 2, env=ENVIRONMENT).check(2)
    assert "If the ranks use different layers" in results[1]["text"]
    assert results[0]["text"] == ""


@pytest.mark.parametrize("ranks", [2, 3])
def test_beside_a_thread(tmp_path, ranks):
    """What another thread brings is awaited."""
    torch_job.run(tmp_path, MODULE, "beside_a_thread", ranks, env=ENVIRONMENT).check(ranks)
