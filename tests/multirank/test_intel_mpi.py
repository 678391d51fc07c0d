"""The same libraries under Intel MPI, which clusters have."""

import os
import sys

import launcher
import pytest
from bodies import mpich

HYDRA = launcher.ROOT / ".venv-impi/bin/mpiexec.hydra"

pytestmark = pytest.mark.skipif(
    not HYDRA.exists(), reason="no .venv-impi; python3 -m venv, and pip install impi-rt"
)


@pytest.mark.parametrize(("ranks", "nodes"), [(2, 0), (4, 2)])
def test_intel_mpi(job, ranks, nodes):
    """On one node and between two."""
    env = {"SMDDP_NODES": str(nodes)} if nodes else {}
    job(mpich.collectives, ranks, launcher=HYDRA, env=env).check(ranks)


def test_smddprun():
    """Calls it by the name that clusters have on PATH, and ends with a rank's error."""
    words = [sys.executable, "-m", "smddp_tf.launch", "--mpirun", str(HYDRA.with_name("mpirun"))]
    script = (
        "import smddp_tf as hvd; hvd.init(); import os;"
        "print(f'cores {len(os.sched_getaffinity(0))} {hvd.allgather_object(hvd.rank())}');"
        "assert hvd.rank() == 0, 'not the first'"
    )
    code, output, timed_out = launcher.run_command(
        [*words, "--no-tag-output", "-np", "2", sys.executable, "-c", script], timeout=60
    )
    assert not timed_out and code != 0
    assert output.count(f"cores {len(os.sched_getaffinity(0))} [0, 1]") == 2, output
    assert "smddprun: the traceback that ended the job" in output, output
    assert output.count("AssertionError: not the first") == 2, output
