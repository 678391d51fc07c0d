"""The same libraries under MPICH, and the sentence when launcher and library do not fit."""

import launcher
import pytest
from bodies import mpich

MPICH = launcher.ROOT / ".venv-mpich/bin/mpirun"

pytestmark = pytest.mark.skipif(not MPICH.exists(), reason="no .venv-mpich; `make test` makes it")


@pytest.mark.parametrize(
    ("ranks", "nodes"),
    [
        pytest.param(2, 0, marks=pytest.mark.thorough),
        pytest.param(3, 0, marks=pytest.mark.thorough),
        (4, 2),
    ],
)
def test_mpich(job, ranks, nodes):
    """On one node and between two."""
    env = {"SMDDP_NODES": str(nodes)} if nodes else {}
    job(mpich.collectives, ranks, launcher=MPICH, env=env).check(ranks)


def test_wrong_library(job):
    """Open MPI's library under MPICH's mpirun is refused in one sentence."""
    library = launcher.BIN.parent / "lib" / "libmpi.so.40"
    if not library.exists():
        pytest.skip("no Open MPI wheel in this environment")
    result = job(
        mpich.collectives, 2, launcher=MPICH, env={"SMDDP_MPI_LIBRARY": str(library)}, timeout=60
    )
    assert not result.timed_out
    assert result.returncode != 0
    assert f"SMDDP_MPI_LIBRARY='{library}' cannot serve" in result.output, result.output[-3000:]
    assert "launched by MPICH's mpirun" in result.output, result.output[-3000:]
