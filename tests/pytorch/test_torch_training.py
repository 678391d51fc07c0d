"""Training on ranks is training on one process."""

import pytest
import torch_job


@pytest.mark.parametrize("ranks", [2, 4])
def test_data_parallel(tmp_path, ranks):
    """DDP's modes: bit-equal weights after several steps."""
    torch_job.run(tmp_path, "ranks_training", "data_parallel", ranks).check(ranks)


def test_unused_on_some_ranks(tmp_path):
    """find_unused_parameters where ranks differ."""
    torch_job.run(tmp_path, "ranks_training", "unused_on_some_ranks", 2).check(2)


def test_sharded(tmp_path):
    """ZeRO, FSDP, fully_shard, its checkpoint, and join()."""
    torch_job.run(tmp_path, "ranks_training", "sharded", 2).check(2)
