"""Horovod's functions for PyTorch that take lists, rows and sparse tensors."""

import pytest
import torch_job


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", ["grouped", "rows", "errors", "sparse", "batch_norm"])
def test_functions(tmp_path, name, ranks):
    """Exact numbers, and errors on all ranks."""
    torch_job.run(tmp_path, "ranks_horovod_lists", name, ranks).check(ranks)
