"""The same libraries under MPICH, and the sentence when launcher and library do not fit."""

import launcher
import pytest

MPICH = launcher.ROOT / ".venv-mpich/bin/mpirun"

pytestmark = pytest.mark.skipif(not MPICH.exists(), reason="no .venv-mpich; `make test` makes it")

BODY = """
total = size * (size + 1) / 2
for n in (0, 1, 1000, 1000003):
    x = hvd.allreduce(tf.ones([n]) * (rank + 1), op=hvd.Sum)
    assert np.array_equal(x, np.full([n], total)), x
assert np.array_equal(hvd.broadcast(tf.fill([3], rank), 1), [1, 1, 1])
assert "MPICH" in hvd.stats()["mpi"]
if size > 2:
    ends = hvd.add_process_set([0, size - 1])
    if ends.included():
        assert float(hvd.allreduce(rank + 1.0, op=hvd.Sum, process_set=ends)) == size + 1
    assert hvd.remove_process_set(ends)
report(size=size)
"""


@pytest.mark.parametrize(("ranks", "nodes"), [(2, 0), (3, 0), (4, 2)])
def test_mpich(job, ranks, nodes):
    """On one node and between two."""
    env = {"SMDDP_NODES": str(nodes)} if nodes else {}
    job(BODY, ranks, launcher=MPICH, env=env).check(ranks)


def test_wrong_library(job):
    """Open MPI's library under MPICH's mpirun is refused in one sentence."""
    library = launcher.BIN.parent / "lib" / "libmpi.so.40"
    if not library.exists():
        pytest.skip("no Open MPI wheel in this environment")
    result = job(BODY, 2, launcher=MPICH, env={"SMDDP_MPI_LIBRARY": str(library)}, timeout=60)
    assert not result.timed_out
    assert result.returncode != 0
    assert f"SMDDP_MPI_LIBRARY='{library}' cannot serve" in result.output, result.output[-3000:]
    assert "launched by MPICH's mpirun" in result.output, result.output[-3000:]
