"""Jobs of other sizes follow each other in a process, and what was traced goes on being right.

MPI goes on between them because mpi4py began it. Sizes are 1, 2, 1, 3 and 2.
"""

import pytest
from bodies import changing_jobs

ENV = {"SMDDP_TIMEOUT_SECONDS": "30"}


@pytest.mark.parametrize(("nodes", "ways"), [(1, ["graph", "jit"]), (2, ["graph"])])
def test_functions_that_were_traced_once(job, nodes, ways):
    """Collectives, their gradients, tapes and rows, in graphs and compiled."""
    env = {**ENV, "SMDDP_NODES": str(nodes)}
    results = job(changing_jobs.traced_once(ways), 3, env=env, timeout=120).check(3)
    for result in results.values():
        assert result["traces"] == result["functions"] == {1: 19, 2: 28}[len(ways)]
        assert len(result["sums"]) == 5 * len(ways)
        assert all(got == wanted for got, wanted in result["sums"]), result["sums"]


@pytest.mark.parametrize("jit", [False, True])
def test_fit(job, jit):
    """Keras traces a step once, in a job of one rank; SyncBatchNormalization is in it."""
    results = job(changing_jobs.fit(jit), 3, env=ENV, timeout=120).check(3)
    for result in results.values():
        # One step of float32; all weights are near 1.
        assert result["difference"] < 1e-5 and result["loss"] < 1e-5, result
        assert result["compared"] == 5 * 8, result


def test_what_is_built_for_one_size(job):
    """It works beside mpi4py as elsewhere; in a job of another size it is an error that says so."""
    results = job(changing_jobs.built_for_one_size, 2, env=ENV, timeout=120).check(2)
    for result in results.values():
        assert set(result["told"]) == set(result["functions"])
        for name, text in result["told"].items():
            assert "anew after init()" in text, (name, text)


def test_what_an_earlier_job_had(job):
    """Its process sets and its higher ranks are errors on the ranks that use them."""
    results = job(changing_jobs.what_an_earlier_job_had, 3, env=ENV, timeout=90).check(3)
    for rank, result in results.items():
        assert result["before"] == [3, 3][: 1 + (rank < 2)]
        assert result["total"] == 3, result
        *of_set, of_root = result["told"]
        assert len(of_set) == (rank < 2) and all("process set 1" in one for one in of_set), result
        assert "root" in of_root, result
