"""Settings and launchers: what differs, cannot be, or would train by itself is an error at init."""

import json
import os
import pathlib
import shutil
import subprocess

import launcher
import pytest
from bodies import settings as bodies

MPICH = launcher.ROOT / ".venv-mpich/bin/mpirun"


def start(command, tmp_path, *, env=None, timeout=60) -> tuple:
    """What became of each rank that a command starts, and all output."""
    script = launcher.script(bodies.becomes, tmp_path)
    code, output, timed_out = launcher.run_command(
        [*command, launcher.BIN / "python", *script], timeout=timeout, env=env
    )
    assert not timed_out, output[-4000:]
    paths = sorted(tmp_path.glob("rank*.json"))
    assert paths, (code, output[-4000:])
    return [json.loads(path.read_text()) for path in paths], output


def start_on_one(tmp_path, settings, ranks=2, env=None, **options) -> list:
    """What became of each rank when only rank 1 has the settings."""
    env = {"ON_ONE_RANK": json.dumps(settings), **(env or {})}
    became, output = start(launcher.mpirun(ranks), tmp_path, env=env, **options)
    assert len(became) == ranks, output[-4000:]
    return became


def check_all_refused(became, *words) -> None:
    """Every rank failed in time, with all the words."""
    for one in became:
        for word in words:
            assert word in one["error"], one["error"]
        assert one["seconds"] < 20


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"SMDDP_ALLREDUCE": "shm"}, "SMDDP_ALLREDUCE: automatic on ranks 0, 2; shm on rank 1"),
        ({"SMDDP_CHUNK_BYTES": "8192"}, "SMDDP_CHUNK_BYTES: automatic on ranks 0, 2; 8192 on"),
        ({"SMDDP_SINGLE_COPY": "0"}, "SMDDP_SINGLE_COPY: 1 on ranks 0, 2; 0 on rank 1"),
        ({"SMDDP_NODES": "2"}, "SMDDP_NODES: 0 on ranks 0, 2; 2 on rank 1"),
        ({"SMDDP_SINGLE_PROCESS": "1"}, "SMDDP_SINGLE_PROCESS: 0 on ranks 0, 2; 1 on rank 1"),
        ({"SMDDP_BUCKET_BYTES": "77"}, "SMDDP_BUCKET_BYTES: 33554432 on ranks 0, 2; 77 on rank 1"),
        (
            {"SMDDP_FIRST_BUCKET_BYTES": "99"},
            "SMDDP_FIRST_BUCKET_BYTES: 1048576 on ranks 0, 2; 99 on rank 1",
        ),
    ],
)
def test_options_that_differ(tmp_path, settings, line):
    """Every rank is told the option, each value and who has it, and how to hand it to all."""
    became = start_on_one(tmp_path, settings, ranks=3)
    check_all_refused(became, line, "-x NAME", "-genv NAME VALUE")


def test_all_that_differs_is_named_between_nodes(tmp_path):
    """Several at once; and with the ranks on emulated nodes, where memory was sized by them."""
    settings = {"SMDDP_CHUNK_BYTES": "8192", "SMDDP_ALLREDUCE": "shm"}
    became = start_on_one(tmp_path, settings, ranks=4, env={"SMDDP_NODES": "2"})
    check_all_refused(became, "SMDDP_CHUNK_BYTES: automatic", "SMDDP_ALLREDUCE: automatic")


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("SMDDP_TIMEOUT_SECONDS", "soon", "a number from 0.1 to 10000000"),
        ("SMDDP_TIMEOUT_SECONDS", "0", "a number from 0.1 to 10000000"),
        ("SMDDP_STALL_WARNING_SECONDS", "-1", "a number from 0 to"),
        ("SMDDP_CHUNK_BYTES", "abc", "a whole number from 4096 to 67108864"),
        ("SMDDP_SPIN_MICROSECONDS", "1.5", "a whole number from -1 to"),
        ("SMDDP_NODES", "nan", "a whole number from 0 to"),
        ("SMDDP_SINGLE_COPY", "0.5", "a whole number from 0 to 1"),
        ("SMDDP_SINGLE_PROCESS", "yes", "a whole number from 0 to 1"),
        ("SMDDP_ALLREDUCE", "magic", "one of: oneshot, handback, shm, hierarchical"),
        ("SMDDP_STAGING", "past", "one of: auto, cached, streaming"),
        ("SMDDP_ISA", "sse", "one of: generic, "),
        ("SMDDP_LOG_LEVEL", "loud", "one of: debug, info, warning, error"),
        ("SMDDP_GPU_KERNELS", "yes", "it takes 0 or 1"),
        ("SMDDP_BUCKET_BYTES", "many", "a whole number of bytes"),
        ("SMDDP_FIRST_BUCKET_BYTES", "0", "a whole number of bytes"),
        ("SMDDP_MPI_LIBRARY", "/nowhere/libmpi.so", "cannot be opened"),
        ("SMDDP_MPI_LIBRARY", "libc.so.6", "cannot serve"),
        ("SMDDP_LIBRARY_DIR", "/nowhere", "/nowhere/libsmddp.so does not exist"),
        ("SMDDP_TIMELINE", "/nowhere/trace.json", "No such file or directory"),
        ("SMDDP_TIMELINE", "/proc/trace.json", "/proc/trace.rank1.json cannot be written"),
    ],
)
def test_a_setting_that_cannot_be(tmp_path, name, value, why):
    """On one rank: all ranks are told, nobody waits or aborts, and all may try again."""
    became = start_on_one(tmp_path, {name: value}, env={"AGAIN": "1"})
    check_all_refused(became, "rank 1 cannot start: ", why)
    assert [one["again"] for one in became] == [2, 2]


def test_options_that_were_removed(tmp_path):
    """The job starts; one rank says of each option that is set that it is gone."""
    env = {"SMDDP_NCCL_BETWEEN": "mpi", "SMDDP_NCCL_REGISTER": "0", "SMDDP_SOCKETS": "2"}
    env |= {"SMDDP_ALLREDUCE": "sockets", "SMDDP_TUNING": "measure"}
    env |= {"SMDDP_ALLTOALL_AGGREGATE_BYTES": "0"}
    became, output = start(launcher.mpirun(2), tmp_path, env=env)
    assert [one["size"] for one in became] == [2, 2], output[-4000:]
    for name in env:
        said = [line for line in output.splitlines() if f"warning: {name}" in line]
        assert len(said) == 1 and "no longer exists: " in said[0], output[-4000:]


def test_chunks_between_nodes(tmp_path):
    """Their size follows from the nodes, and is known to all."""
    env = {"SMDDP_NODES": "3", "SMDDP_LOG_LEVEL": "info"}
    became, output = start(launcher.mpirun(3), tmp_path, env=env)
    assert [one["chunk_bytes"] for one in became] == [512 << 10] * 3, output[-4000:]
    assert output.count(f"between nodes: chunks of {512 << 10} bytes") == 1, output[-4000:]


def test_a_part_of_the_ranks(tmp_path):
    """A rank that cannot start stops all jobs; options are compared in each job of its own."""
    script = launcher.script(bodies.a_part_of_the_ranks, tmp_path)
    command = [*launcher.mpirun(3), launcher.BIN / "python", *script]
    code, output, timed_out = launcher.run_command(command, timeout=60)
    assert not timed_out
    assert code == 0, output[-4000:]
    assert (output.count("job of 2"), output.count("job of 1")) == (2, 1), output[-4000:]


def test_a_timeline_that_cannot_be_written_alone(tmp_path):
    """One process: an error, no abort."""
    became, _ = start([], tmp_path, env={"SMDDP_TIMELINE": "/nowhere/trace.json"})
    check_all_refused(became, "/nowhere/trace.rank0.json cannot be written: No such file")


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become a user without processes")
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_limit_of_threads(tmp_path, threads):
    """The monitor, or what is started after it, gets no thread: an error, no abort."""
    command = [launcher.BIN / "python"]
    command += launcher.script(bodies.has_few_threads(threads), tmp_path)
    code, output, timed_out = launcher.run_command(command, timeout=60)
    assert not timed_out
    assert code == 0, output
    assert ("size 1" if threads == 3 else "refused: this rank cannot start") in output, output


@pytest.mark.skipif(not MPICH.exists(), reason="no .venv-mpich; `make test` makes it")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"SMDDP_ALLREDUCE": "shm"}, "SMDDP_ALLREDUCE: automatic on rank 0; shm on rank 1"),
        ({"SMDDP_CHUNK_BYTES": "abc"}, "rank 1 cannot start: SMDDP_CHUNK_BYTES='abc'"),
        ({"SMDDP_MPI_LIBRARY": "libc.so.6"}, "rank 1 cannot start: SMDDP_MPI_LIBRARY='libc.so.6'"),
    ],
)
def test_under_mpich(tmp_path, settings, words):
    """The same sentences, and a second try."""
    env = {"ON_ONE_RANK": json.dumps(settings), "AGAIN": "1"}
    became, output = start(launcher.mpirun(2, MPICH), tmp_path, env=env)
    assert len(became) == 2, output[-4000:]
    check_all_refused(became, words)
    assert [one["again"] for one in became] == [2, 2]


def test_versions_that_differ(tmp_path):
    """TensorFlow's and Keras's are a warning, once."""
    stub = tmp_path / "stub"
    stub.mkdir()
    (stub / "sitecustomize.py").write_text(
        "import os, sys, types\n"
        "if os.environ.get('OMPI_COMM_WORLD_RANK') == '1':\n"
        "    tensorflow = sys.modules['tensorflow'] = types.ModuleType('tensorflow')\n"
        "    tensorflow.__version__ = '2.15.1'\n"
    )
    path = os.pathsep.join([str(stub), str(launcher.ROOT)])
    became, output = start(launcher.mpirun(2), tmp_path, env={"PYTHONPATH": path})
    assert [one["size"] for one in became] == [2, 2], output[-4000:]
    assert output.count("different versions") == 1, output[-4000:]
    assert "2.15 on rank 1" in output, output[-4000:]


# ---- launchers ----------------------------------------------------------------------------------

STEP = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2", "SLURM_PROCID": "1"}
OPEN_MPI_LIBRARY = str(launcher.BIN.parent / "lib/libmpi.so.40")
ONE_OF_SEVERAL = {
    "torchrun": {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"},
    "srun": STEP,
    "srun --mpi=pmix, no server": {**STEP, "PMIX_RANK": "1", "PMIX_NAMESPACE": "slurm.1"},
    "PMIX_RANK by hand": {"PMIX_RANK": "1"},
    "flux": {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2"},
    "PALS": {"PALS_RANKID": "1"},
    "PMI without MPI": {"PMI_RANK": "1", "PMI_SIZE": "2"},
    "PMI, and MPI begins alone": {
        "PMI_RANK": "1",
        "PMI_SIZE": "2",
        "SMDDP_MPI_LIBRARY": str(MPICH.parents[1] / "lib/libmpi.so.12"),
    },
    "PMI with Open MPI": {"PMI_RANK": "1", "PMI_SIZE": "2", "SMDDP_MPI_LIBRARY": OPEN_MPI_LIBRARY},
}


@pytest.mark.parametrize("what", list(ONE_OF_SEVERAL))
def test_one_of_several_that_cannot_be_joined(tmp_path, what):
    """It is refused with what was seen and what to do; unless it is to be alone."""
    env = ONE_OF_SEVERAL[what]
    if not pathlib.Path(env.get("SMDDP_MPI_LIBRARY", "/")).exists():
        pytest.skip(f"no {env['SMDDP_MPI_LIBRARY']}")
    became, _ = start([], tmp_path, env=env)
    name = next(name for name in env if "RANK" in name or "PROC" in name)
    seen = f"{name}={env[name]}"
    check_all_refused(became, seen, "use mpirun", "SMDDP_SINGLE_PROCESS=1")
    became, _ = start([], tmp_path, env={**env, "SMDDP_SINGLE_PROCESS": "1"})
    assert [(one["error"], one["size"]) for one in became] == [("", 1)]


def test_without_mpirun_the_mpi_beside_the_mpirun_on_path_is_opened(tmp_path):
    """As in an activated environment under srun; here it has no process manager to ask."""
    if not MPICH.exists():
        pytest.skip(f"no {MPICH}")
    path = os.pathsep.join([str(MPICH.parent), os.environ["PATH"]])
    became, _ = start([], tmp_path, env={**ONE_OF_SEVERAL["PMI without MPI"], "PATH": path})
    assert "cannot be opened" not in became[0]["error"]
    check_all_refused(became, "PMI_RANK=1", "sees no other rank")


@pytest.mark.parametrize(
    "env",
    [
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"},
        {"SLURM_STEP_ID": "4294967290", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"},
        {"RANK": "0", "WORLD_SIZE": "1"},
    ],
)
def test_a_process_of_its_own(tmp_path, env):
    """A batch script, a shell in an allocation, torchrun of one."""
    became, _ = start([], tmp_path, env=env)
    assert [(one["error"], one["size"]) for one in became] == [("", 1)]


@pytest.mark.parametrize("mpi", ["Open MPI", "MPICH"])
@pytest.mark.parametrize("inside", [STEP, ONE_OF_SEVERAL["torchrun"]], ids=["slurm", "torchrun"])
def test_mpirun_wins(tmp_path, mpi, inside):
    """In an allocation its daemons are tasks of a step, whose variables the ranks inherit."""
    path = None if mpi == "Open MPI" else MPICH
    if path is not None and not path.exists():
        pytest.skip("no .venv-mpich; `make test` makes it")
    # Under the names of a step Open MPI would start its daemons through srun; after mpirun they
    # mean nothing to it.
    words = [f"{name}={value}" for name, value in inside.items()]
    became, output = start([*launcher.mpirun(2, path), "env", *words], tmp_path)
    assert [(one["error"], one["size"]) for one in became] == [("", 2)] * 2, output[-4000:]


def test_mpirun_of_separate_processes(tmp_path):
    """SMDDP_SINGLE_PROCESS=1 on all ranks: each is alone."""
    env = {"SMDDP_SINGLE_PROCESS": "1"}
    became, output = start(launcher.mpirun(2), tmp_path, env=env)
    assert [(one["error"], one["size"]) for one in became] == [("", 1)] * 2, output[-4000:]


def test_mpi_that_runs_already_is_joined(tmp_path):
    """Whatever the environment says: mpi4py has joined the ranks, so they are a job."""
    script = launcher.script(bodies.mpi_runs_already, tmp_path)
    command = [*launcher.mpirun(2), launcher.BIN / "python", *script]
    code, output, timed_out = launcher.run_command(command, timeout=60)
    assert not timed_out
    assert (code, output.count("joined 2")) == (0, 2), output[-4000:]


# ---- binding ------------------------------------------------------------------------------------


def cores() -> list:
    """Those that this process may use."""
    return sorted(os.sched_getaffinity(0))


needs_cores = pytest.mark.skipif(len(cores()) < 2, reason="this machine has a single core")


@needs_cores
@pytest.mark.parametrize("ranks", [1, 2])
def test_binding_to_few_cores_is_told(tmp_path, ranks):
    """Once, with the option to use; SMDDP_LOG_LEVEL=error silences it."""
    bound = ["taskset", "-c", str(cores()[0])]
    command = [*launcher.mpirun(ranks), "--bind-to", "none", *bound]
    _, output = start(command, tmp_path)
    assert output.count("mpirun bound") == 1, output
    assert f"to 1 of its {len(cores())} cores" in output
    assert "--bind-to none" in output
    _, output = start(command, tmp_path, env={"SMDDP_LOG_LEVEL": "error"})
    assert "mpirun bound" not in output


@needs_cores
@pytest.mark.parametrize("bind", [["--bind-to", "none"], ["--bind-to", "core"]])
def test_binding_that_uses_the_cores_is_not(tmp_path, bind):
    """Nothing bound, or every core used by some rank."""
    command = [launcher.BIN / "mpirun", "-np", str(min(2, len(cores()))), *bind]
    if bind[1] == "core":
        command = ["taskset", "-c", ",".join(map(str, cores()[:2])), *command]
    _, output = start(command, tmp_path)
    assert "mpirun bound" not in output, output


@needs_cores
def test_a_job_that_is_limited_as_a_whole(tmp_path):
    """Taskset around mpirun: its ranks can have no more."""
    limited = ["taskset", "-c", str(cores()[0]), *launcher.mpirun(2), "--bind-to", "none"]
    _, output = start(limited, tmp_path)
    assert "mpirun bound" not in output, output


def test_where_numbers_have_commas(job, python, tmp_path):
    """setlocale() changes what printf and strtod take for a decimal point, in C++ too."""
    locales = tmp_path / "locales"
    locales.mkdir()
    made = shutil.which("localedef") and subprocess.run(
        ["localedef", "-f", "UTF-8", "-i", "de_DE", locales / "de_DE.UTF-8"], capture_output=True
    )
    if not (locales / "de_DE.UTF-8").exists():
        pytest.skip(f"localedef cannot make a locale here: {made and made.stderr.decode()}")
    job = job(bodies.where_numbers_have_commas(locales=str(locales)), 2, python=python)
    for result in job.check(2).values():
        assert result["found"] == [1, 1, 1] and result["awaited"] >= 0
        assert result["events"] > 3
