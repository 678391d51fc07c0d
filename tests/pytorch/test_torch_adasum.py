"""horovod.torch's Adasum."""

import pytest
import torch_job


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("collectives", 2),
        ("collectives", 3),
        ("collectives", 5),
        ("errors", 2),
        ("training", 2),
        ("training", 3),
        ("training", 4),
    ],
)
def test_adasum(tmp_path, name, ranks):
    """The paper's formula, errors on all ranks, and the weights of one process."""
    torch_job.run(tmp_path, "ranks_adasum", name, ranks).check(ranks)
