"""Ranks that disagree, die, stop or raise: everybody hears of it, in time, and nothing hangs."""

import os
import re
import sys

import launcher
import machine_time
import pytest
from bodies import faults
from conftest import PYTHONS, on_ranks


@on_ranks("python", PYTHONS, 2, 3)
def test_ranks_that_disagree(job, python, ranks):
    """FailedPreconditionError on all ranks, naming both sides; the job goes on."""
    results = job(faults.disagree, ranks, python=python).check(ranks)
    assert all(result["sum"] == ranks for result in results.values())


def test_a_rank_that_inits_late(job):
    """Those that wait in MPI_Init, which has no limit, say so."""
    result = job(faults.one_inits_late, 2, env={"SMDDP_STALL_WARNING_SECONDS": "0.5"})
    assert result.check(2)[0]["sum"] == 2
    assert result.output.count("init() has waited for the other ranks for 0.5 s") == 1


@pytest.mark.quiet
@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "os._exit(3)", "sys.exit(0)"])
def test_a_rank_that_goes(job, end):
    """Survivors raise within 2 seconds, naming the rank, the collective and the step."""
    start = machine_time.now()
    result = job(faults.one_goes(end), 3, timeout=60, cold=True)
    assert not result.timed_out, result.output[-4000:]
    assert machine_time.now() - start < 45
    assert result.returncode != 0
    # mpirun may end a survivor before its script reports, but the sentence is always there.
    assert "rank 1 (process" in result.output, result.output[-4000:]
    assert "(step " in result.output
    for survivor in result.results.values():
        assert survivor["error"] == "UnknownError"
        assert survivor["seconds"] < 2
        assert "rank 1" in survivor["text"]
        assert "step" in survivor["text"]
        assert "DistributedGradientTape" in survivor["text"]


def test_a_rank_that_is_refused_alone(job):
    """The others are told with which exception it ended."""
    result = job(faults.one_is_refused, 3, timeout=60, cold=True)
    assert not result.timed_out, result.output[-4000:]
    assert set(result.results) == {0, 2}, result.output[-4000:]
    assert all(one["seconds"] < 5 for one in result.results.values()), result.results


@pytest.mark.quiet
@pytest.mark.parametrize(
    ("ranks", "end"),
    [(2, "sys.exit(0)"), (3, "sys.exit(0)"), (4, "hvd.shutdown(); time.sleep(5); sys.exit(0)")],
)
def test_a_rank_of_another_node_ends(job, end, ranks):
    """It tells the other nodes, and failures of a node are passed on: nobody waits for long."""
    result = job(faults.one_goes(end), ranks, env={"SMDDP_NODES": "2"}, timeout=60)
    assert not result.timed_out, result.output[-4000:]
    assert result.returncode != 0
    # Whoever notices first tells all: a rank of its own node knows its process.
    said = "no longer takes part" in result.output or "rank 1 (process" in result.output
    assert said, result.output[-4000:]
    assert result.results, result.output[-4000:]
    for survivor in result.results.values():
        assert survivor["error"] == "UnknownError"
        assert survivor["seconds"] < 2
        assert "DistributedGradientTape" in survivor["text"]


def test_a_rank_of_another_node_dies(job):
    """The launcher ends the others; what they waited for is in the output all the same."""
    body = faults.one_goes("os.kill(os.getpid(), 9)")
    start = machine_time.now()
    result = job(body, 2, env={"SMDDP_NODES": "2"}, timeout=60)
    assert not result.timed_out, result.output[-4000:]
    assert machine_time.now() - start < 45
    assert "ended by SIGTERM while waiting for" in result.output, result.output[-4000:]
    assert "(step " in result.output


@pytest.mark.parametrize(("victim", "work"), [(0, []), (2, []), (0, ["join"])])
@pytest.mark.parametrize(
    ("mpi", "others_live_on"),
    [(None, "--enable-recovery"), (".venv-mpich", "-disable-auto-cleanup")],
)
def test_the_first_rank_of_a_node_dies(tmp_path, mpi, others_live_on, victim, work):
    """The next one tells the other node, if the launcher ends nobody; in join() too.

    MPICH's does so in spite of its option, unless its own child lives on and heeds no SIGUSR1.
    """
    starter = launcher.ROOT / mpi / "bin/mpirun" if mpi else None
    if starter is not None and not starter.exists():
        pytest.skip(f"no {mpi}; `make test` makes it")
    shell = ["sh", "-c", "trap '' USR1; \"$@\"; exit 0", "sh"]
    command = [*launcher.mpirun(4, starter), others_live_on, *shell]
    script = launcher.ROOT / "tests/hosts/body_killed.py"
    command += [sys.executable, script, victim, tmp_path, *work]
    env = {"SMDDP_NODES": "2", "SMDDP_TIMEOUT_SECONDS": "40"}  # what a hang would show as
    _, output, timed_out = launcher.run_command(command, timeout=60, env=env)
    assert not timed_out, output[-4000:]
    killed = float((tmp_path / f"at{victim}").read_text())
    for survivor in sorted({0, 1, 2, 3} - {victim}):
        said = (tmp_path / f"text{survivor}").read_text()
        assert re.search(rf"rank {victim} (\(process \d+\) )?died while rank \d waited", said), said
        waits = survivor < 3 or not work  # the last rank does not before it joins
        assert float((tmp_path / f"at{survivor}").read_text()) - killed < (5 if waits else 15)


def test_ranks_of_several_nodes_end_at_different_times(job):
    """The first waits for the last; no error, and no core is burnt."""
    job(faults.end_at_different_times, 4, env={"SMDDP_NODES": "2"}).check(4)


@pytest.mark.quiet
def test_a_rank_that_goes_leaves_no_shared_memory(job):
    """The segment has no name, so nothing is in /dev/shm even after SIGKILL."""
    before = set(os.listdir("/dev/shm"))
    job(faults.all_go, 2, timeout=60)
    left = {name for name in set(os.listdir("/dev/shm")) - before if "smddp" in name}
    assert not left


def test_own_sigterm_handler_is_kept(job):
    """A script's handler still runs, whether it was set before or after init."""
    results = job(faults.own_sigterm_handler, 2).check(2)
    assert all(result == {"seen": 1, "sum": 2.0} for result in results.values())


def test_sigterm_still_ends_a_process_and_its_children(job):
    """Without a handler of the script's, SIGTERM kills as ever, forked children too."""
    result = job(faults.end_by_sigterm, 2, timeout=40)
    assert not result.timed_out
    assert result.returncode != 0
    assert [result.results[r]["signal"] for r in (0, 1)] == [15, 15]


def test_a_forked_child_is_no_rank(job):
    """It is refused, and its end does not disturb the job."""
    results = job(faults.a_forked_child, 2).check(2)
    assert all(result == {"code": 7, "sum": 2.0} for result in results.values())


def test_init_in_a_child_of_a_rank(job):
    """MPI would take it for the rank: it hung, and the rank crashed at its end."""
    results = job(faults.inits_of_children, 2).check(2)
    for result in results.values():
        for text in result["texts"]:
            assert f"was started by a rank of the job (process {result['pid']})" in text, text
            assert "__main__" in text
        assert result["sum"] == 2
    assert results[0]["inside"].count("ranks 2") == 2, results[0]["inside"]


def test_a_rank_that_stops(job):
    """A warning names it and the tensors; then an error does."""
    env = {"SMDDP_STALL_WARNING_SECONDS": "1", "SMDDP_TIMEOUT_SECONDS": "5"}
    result = job(faults.one_goes("stops"), 2, env=env, timeout=60)
    assert result.results[0]["error"] == "DeadlineExceededError", result.output[-4000:]
    assert "rank 1" in result.results[0]["text"]
    assert 4 < result.results[0]["seconds"] < 10
    assert "stalled: waited 1." in result.output
    assert "weights float32 [200000]" in result.output
    assert result.returncode != 0


def test_a_rank_that_stops_is_named_alone(job):
    """Not the other one too, which waits for it as well; on a busy machine it had come less far."""
    result = job(faults.one_goes("stops"), 3, env={"SMDDP_TIMEOUT_SECONDS": "4"}, timeout=60)
    survivors = [result.results[r] for r in (0, 2) if r in result.results]
    assert survivors, result.output[-4000:]
    for one in survivors:
        assert "for rank 1 in" in one["text"], one


def test_a_rank_of_another_node_is_late(job):
    """Ranks that wait for their neighbours are warned that these may wait themselves."""
    env = {"SMDDP_NODES": "2", "SMDDP_STALL_WARNING_SECONDS": "1"}
    result = job(faults.one_is_late, 4, env=env)
    assert all(one["sum"] == 4 for one in result.check(4).values())
    stalls = re.findall(r"smddp_tf\[rank (\d)\] warning: stalled: (.*)", result.output)
    warned = {rank: "Or they wait for another node themselves" in text for rank, text in stalls}
    assert warned == {"0": True, "1": True, "2": False}, result.output[-4000:]


def test_a_backward_pass_that_fails(job, python):
    """The rank has its own error at once, though later buckets could run; the others are told."""
    env = {"SMDDP_BUCKET_BYTES": "200000", "SMDDP_FIRST_BUCKET_BYTES": "200000"}
    env["SMDDP_TIMEOUT_SECONDS"] = "25"  # what a hang would show as
    results = job(faults.backward_fails, 2, python=python, env=env).check(2)
    assert all(result["sum"] == 2 for result in results.values())


@pytest.mark.parametrize("launched", ["script", "mpi4py"])
def test_a_rank_that_raises(tmp_path, launched):
    """Its traceback is the first thing seen; the others end too."""
    module = ["-m", "mpi4py"] if launched == "mpi4py" else []
    command = [
        *launcher.mpirun(2),
        launcher.BIN / "python",
        *module,
        *launcher.script(faults.one_raises, tmp_path),
    ]
    code, output, timed_out = launcher.run_command(command, timeout=60)
    assert not timed_out, output[-4000:]
    assert code != 0
    first = output.find("the data are broken")
    other = output.find("smddp_tf[rank 0] error")
    assert first >= 0, output[-4000:]
    assert other < 0 or output.find("Traceback") < other, output[-4000:]


def test_mpi4py_has_begun_mpi(tmp_path):
    """Under `python -m mpi4py` MPI is running: it is used, and left running."""
    script = launcher.script(faults.mpi_has_begun, tmp_path)
    command = [*launcher.mpirun(2), launcher.BIN / "python", "-m", "mpi4py", *script]
    code, output, timed_out = launcher.run_command(command, timeout=60)
    assert not timed_out
    assert (code, output.count("sum 2")) == (0, 2), output[-4000:]


def test_before_init(tmp_path):
    """Everything that needs the job says to call init()."""
    code, output, _ = launcher.run_command(
        [launcher.BIN / "python", *launcher.script(faults.before_init, tmp_path)],
        timeout=60,
        cwd=tmp_path,
    )
    assert (code, "refused all" in output) == (0, True), output


@pytest.mark.parametrize(
    ("name", "value"), [("SMDDP_TIMEOUT_SECONDS", "soon"), ("SMDDP_ALLREDUCE", "magic")]
)
def test_bad_environment(name, value, tmp_path):
    """A value that is not understood is refused, with what is accepted."""
    code, output, _ = launcher.run_command(
        [launcher.BIN / "python", "-c", "import smddp_tf; smddp_tf.init()"],
        timeout=60,
        env={name: value},
    )
    assert code != 0
    assert f"{name}='{value}'" in output
    assert "it takes" in output
