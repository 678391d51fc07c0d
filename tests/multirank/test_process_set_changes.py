"""Process sets come and go, ranks disagree about them or die, and nothing hangs or is left."""

import shutil
import signal
import subprocess

import launcher
import pytest
from bodies import process_set_changes, settings


@pytest.mark.parametrize("nodes", [1, 2])
def test_added_and_removed(job, nodes):
    """20 times, and nothing is left: memory, mappings, descriptors, threads."""
    job(process_set_changes.added_and_removed, 3, env={"SMDDP_NODES": str(nodes)}).check(3)


def test_ranks_that_disagree(job):
    """About which sets there are, or inside one: an error on all ranks, and the job goes on."""
    results = job(process_set_changes.disagree, 3).check(3)
    for r in (1, 2):
        assert "allreduce 'odd' of process set 1" in results[r]["text"]
        assert "rank 1 has [float32 [1]], rank 2 has [float32 [2]]" in results[r]["text"]


def test_a_set_in_use_is_not_removed(job):
    """All ranks hear of it, and the collective under way ends well."""
    job(process_set_changes.removed_in_use, 3).check(3)


@pytest.mark.quiet
def test_a_member_that_dies(job):
    """Its set hears of it, and so does who waits elsewhere for somebody that waits in the set."""
    result = job(process_set_changes.a_member_dies, 3, timeout=60)
    assert not result.timed_out, result.output[-4000:]
    assert result.returncode != 0
    # mpirun may end a survivor before its script reports, but the sentence is always there.
    assert "rank 2 (process" in result.output, result.output[-4000:]
    assert "'in_the_set' of process set 1" in result.output, result.output[-4000:]
    for survivor in result.results.values():
        assert survivor["error"] == "UnknownError"
        assert survivor["seconds"] < 2
        assert "rank 2" in survivor["text"]


def test_sets_given_to_init(job):
    """They are there at once; ranks that give others are refused, all of them."""
    results = job(process_set_changes.gives_other_sets, 3, timeout=60).check(3)
    assert [results[r]["sum"] for r in range(3)] == [3.0] * 3
    results = job(process_set_changes.gives_sets, 3, timeout=60).check(3)
    assert [results[r]["sum"] for r in range(3)] == [2.0, 1.0, 2.0]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_sets_of_communicators(job, ranks):
    """Horovod's way to make sets of MPI's Split()."""
    job(process_set_changes.communicators_are_the_sets, ranks, timeout=60).check(ranks)


def test_a_part_of_the_ranks_is_the_job(job):
    """init(comm=...): ranks are renumbered; the rest is alone, or another job."""
    job(process_set_changes.a_part_is_the_job, 3, timeout=60).check(3)
    job(process_set_changes.two_parts_are_jobs, 4, timeout=60).check(4)
    job(process_set_changes.a_communicator_is_the_job, 3, timeout=60).check(3)


def stopped_at(function, call, rank, folder) -> dict:
    """The environment of a job in which a rank stops when it comes to that call of MPI."""
    mpi_library = launcher.BIN.parent / "lib/libmpi.so"
    if shutil.which("cc") is None or not mpi_library.exists():
        pytest.skip(f"no cc on PATH, or no {mpi_library}")
    shim = folder / "libshim.so"
    source = launcher.HERE / "mpi_shim.c"
    linked = ["-Wl,--no-as-needed", mpi_library, f"-Wl,-rpath,{mpi_library.parent}", "-ldl"]
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, source, *linked], check=True, timeout=60)
    shim_env = {"SHIM_FUNCTION": function, "SHIM_CALL": str(call), "SHIM_RANK": str(rank)}
    shim_env["SHIM_SIGNAL"] = str(int(signal.SIGSTOP))
    return {**shim_env, "SMDDP_MPI_LIBRARY": str(shim), "SMDDP_NODES": "2"}


def test_a_rank_that_stops_before_mpi_splits(job, tmp_path):
    """MPI_Comm_split has no limit of its own: the others end at SMDDP_TIMEOUT_SECONDS."""
    # init() calls it five times on each of several nodes.
    env = {"SMDDP_TIMEOUT_SECONDS": "5", **stopped_at("MPI_Comm_split", 6, 3, tmp_path)}
    result = job(process_set_changes.added_until_it_fails, 4, env=env, timeout=60)
    assert set(result.results) >= {0, 1, 2}, result.output[-4000:]
    for r in range(3):
        assert "in add_process_set([0, 2])" in result.results[r]["text"]
        assert "SMDDP_TIMEOUT_SECONDS" in result.results[r]["text"]
        assert 4 < result.results[r]["seconds"] < 10
    # Open MPI naps meanwhile; with more ranks than cores it would keep them busy by yielding.
    busy = sum(result.results[r]["busy"] for r in range(3))
    assert busy < result.results[0]["seconds"], result.results


# The first call of MPI_Iallgather is where all ranks meet.
@pytest.mark.parametrize(("function", "call"), [("MPI_Iallgather", 2), ("MPI_Comm_split", 4)])
def test_a_rank_that_stops_during_init(job, function, call, tmp_path):
    """When all have come, what is left has a limit too."""
    env = {"SMDDP_TIMEOUT_SECONDS": "1", **stopped_at(function, call, 1, tmp_path)}
    result = job(settings.becomes, 3, env=env, timeout=60)
    assert set(result.results) >= {0, 2}, result.output[-4000:]
    for one in (result.results[0], result.results[2]):
        assert "all 3 ranks called init(), but were not connected within 10 s" in one["error"]
        assert 9 < one["seconds"] < 15, one


def test_threads_that_run_out(job):
    """An error with a reason on all ranks, where an exception ended the process without a word."""
    result = job(process_set_changes.threads_run_out, 3, timeout=60)
    assert set(result.results) == {0, 1, 2}, result.output[-4000:]
    for r in range(3):
        assert "rank 1 failed in add_process_set" in result.results[r]["text"]
        assert "no memory or threads left" in result.results[r]["text"]
