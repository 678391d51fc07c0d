"""smddprun and the doctor, as users call them."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import launcher
import numpy as np
import pytest

SMDDPRUN = [sys.executable, "-m", "smddp_tf.launch"]
DOCTOR = [sys.executable, "-m", "smddp_tf.doctor", "--json", "--quick"]
SCRIPTS = launcher.ROOT / "tests/scripts"
WITH_MPIRUN = {"PATH": f"{launcher.BIN}:{os.environ['PATH']}"}


def run(command, timeout=90, **env):
    """(exit code, output) of a command that must not reach its limit."""
    code, output, timed_out = launcher.run_command(
        command, timeout=timeout, env={**WITH_MPIRUN, **env}
    )
    assert not timed_out, output[-4000:]
    return code, output


def report_of(output) -> dict:
    """The doctor's JSON among what mpirun says."""
    lines = [line for line in output.splitlines() if line.startswith('{"ok":')]
    assert len(lines) == 1, output[-4000:]
    return json.loads(lines[0])


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_the_traceback_comes_last(tmp_path, mpi):
    """Lines have their rank, the failed rank's traceback is last, the exit code is its own."""
    mpirun = launcher.BIN / "mpirun"
    if mpi == "mpich":
        mpirun = launcher.ROOT / ".venv-mpich/bin/mpirun"
        if not mpirun.exists():
            pytest.skip("no .venv-mpich; `make test` makes it")
    script = tmp_path / "fails.py"
    script.write_text(
        "import os, pathlib, sys, time\n"
        "folder = pathlib.Path(__file__).parent\n"
        "rank = int(os.environ.get('OMPI_COMM_WORLD_RANK') or os.environ.get('PMI_RANK') or 0)\n"
        "said = f\"here is {rank} {os.environ['SMDDP_RESTART']} {os.environ['A']}\\n\"\n"
        "sys.stdout.write(said)\n"
        "sys.stdout.flush()\n"
        "(folder / f'said{rank}').touch()\n"
        "limit = time.monotonic() + 30\n"
        "while len(list(folder.glob('said*'))) < 3 and time.monotonic() < limit:\n"
        "    time.sleep(0.05)\n"
        "time.sleep(0.5 if rank == 1 else 5)\n"  # for the launcher to hand on what was said
        "if rank == 1:\n"
        "    raise ValueError('the cause')\n"
    )
    words = ["--mpirun", mpirun, "-np", 3, "-x", "A=b,c"]  # no terminal: with tags
    code, output = run([*SMDDPRUN, *words, sys.executable, script])
    assert code == 1, output
    for rank in range(3):
        assert f"smddprun: rank {rank} starts on {socket.gethostname()}\n" in output
        assert any(
            line.endswith(f"here is {rank} 0 b,c") and line[0] == "["
            for line in output.splitlines()
        ), output
    *_, last, said = output.strip().splitlines()
    assert last == "ValueError: the cause", output
    assert said == "smddprun: the job failed with exit code 1", output
    assert "smddprun: the traceback of rank 1 that ended the job:" in output


def test_a_signal_ends_the_job(tmp_path):
    """SIGTERM reaches the ranks through mpirun, and the job does not start again."""
    script = tmp_path / "waits.py"
    script.write_text(
        "import os, pathlib, sys, time\n"
        "pathlib.Path(sys.argv[1], f'pid{os.getpid()}').touch()\n"
        "time.sleep(60)\n"
    )
    words = ["-np", "2", "--max-restarts", "3", sys.executable, script, tmp_path]
    process = subprocess.Popen(
        [str(word) for word in [*SMDDPRUN, *words]],
        env={**launcher.environment(WITH_MPIRUN), "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        limit = time.monotonic() + 40
        while len(list(tmp_path.glob("pid*"))) < 2 and time.monotonic() < limit:
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=40)
    finally:
        process.kill()
    assert process.returncode not in (0, -signal.SIGKILL), err
    assert "starts again" not in err
    ranks = [int(path.name[3:]) for path in tmp_path.glob("pid*")]
    assert len(ranks) == 2, err
    limit = time.monotonic() + 10
    while any(_runs(pid, script) for pid in ranks) and time.monotonic() < limit:
        time.sleep(0.1)
    assert not any(_runs(pid, script) for pid in ranks)


def _runs(pid, script) -> bool:
    try:
        return str(script).encode() in open(f"/proc/{pid}/cmdline", "rb").read()
    except FileNotFoundError:
        return False


def test_ranks_that_die_twice(tmp_path):
    """The job goes on from its checkpoints: each sample was used once in each epoch."""
    python = launcher.warm_python(env=WITH_MPIRUN)
    words = ["-np", 2, "--max-restarts", 2, *python, SCRIPTS / "resume.py", tmp_path]
    code, output = run([*SMDDPRUN, *words], timeout=150)
    assert code == 0, output[-6000:]
    assert "it starts again (1 of 2)" in output
    assert "it starts again (2 of 2)" in output
    began = [int((tmp_path / f"began{attempt}").read_text()) for attempt in range(3)]
    assert began == [0, 4, 8], output[-6000:]
    # -1 for each time that a sample was used, in 2 epochs.
    np.testing.assert_array_equal(np.load(tmp_path / "weights.npy"), np.full(24, -2.0))


def test_doctor_under_mpirun():
    """Both ranks, how they reach each other, how fast; nothing to complain of is an error."""
    code, output = run([*SMDDPRUN, "-np", 2, "--no-tag-output", *DOCTOR])
    report = report_of(output)
    assert code == 0, report["findings"]
    job = report["job"]
    assert job["size"] == len(job["ranks"]) == 2
    assert [pair["ranks"] for pair in job["pairs"]] == [[0, 1]]
    assert job["pairs"][0]["transport"].startswith("shared memory")
    for speed in (job["pairs"][0], job["allreduce"]):
        assert speed["latency_us"] > 0
        assert speed["gigabytes_per_second"] > 0
    # One clock, read on both ranks.
    assert max(map(abs, job["clock_offsets_ms"])) <= 2 * job["clock_exact_ms"] + 1
    assert report["mpi"] != "none"


@pytest.fixture
def as_container() -> list:
    """The words before a command whose process ids begin at 1."""
    inside = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    tried = subprocess.run([*inside, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"unshare --pid: {tried.stderr.strip()}")
    return inside


def test_a_container_that_was_killed_starts_again(as_container, tmp_path):
    """Its mpirun has the process id of the one that was killed, whose files are still there."""
    environment = launcher.environment({**WITH_MPIRUN, "TMPDIR": str(tmp_path)})
    waits = f"touch {tmp_path}/runs && exec sleep 60"
    words = [*as_container, *SMDDPRUN, "-np", "1", "sh", "-c"]
    with subprocess.Popen([*words, waits], env=environment, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 30
        while not (tmp_path / "runs").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.kill()
    assert (tmp_path / "runs").exists()
    left = {path.name for path in tmp_path.iterdir()}
    assert len(left) == 2, left  # and mpirun's files
    again = [*words, "echo it runs in $TMPDIR, mpirun in $PMIX_SERVER_TMPDIR"]
    done = subprocess.run(again, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"it runs in {tmp_path}, mpirun in {tmp_path}/smddprun." in done.stdout, done.stdout
    assert {path.name for path in tmp_path.iterdir()} == left


def test_advice_where_mpirun_is_process_1(as_container):
    """As in `docker run image mpirun ...`: a rank on one of two cores is told so."""
    if os.cpu_count() < 2:
        pytest.skip("one core")
    mpirun = pathlib.Path(sys.executable).with_name("mpirun")
    words = [mpirun, "-np", 1, "--bind-to", "core", sys.executable, "-c"]
    code, output = run([*as_container, *words, "import smddp_tf; smddp_tf.init()"])
    assert code == 0, output
    assert "mpirun bound this rank to 1 of its" in output


def why_no_mount() -> str:
    """Why a process cannot have a /dev/shm of its own; "" if it can."""
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except OSError as error:
        return str(error)
    return "" if tried.returncode == 0 else tried.stderr.strip()


def test_doctor_with_a_bad_setup():
    """Ranks on one core, emulated nodes, a small /dev/shm and clocks apart are no errors."""
    reason = why_no_mount()
    if reason:
        pytest.skip(f"unshare -m: {reason}")
    if os.cpu_count() < 2:
        pytest.skip("one core")
    core = min(os.sched_getaffinity(0))
    small = 'mount -t tmpfs -o size=8m tmpfs /dev/shm && exec "$@"'
    inside = ["unshare", "-m", "sh", "-c", small, "sh"]
    words = ["-np", 2, "--no-tag-output", "-x", "SMDDP_NODES=2", "taskset", "-c", core]
    words += [sys.executable, SCRIPTS / "doctor_with_a_wrong_clock.py", "--json", "--quick"]
    code, output = run([*inside, *SMDDPRUN, *words])
    report = report_of(output)
    assert code == 0, report["findings"]
    said = "\n".join(f"{one['level']}: {one['what']}" for one in report["findings"])
    assert f"warning: bound to one of {os.cpu_count()} cores" in said
    assert "warning: /dev/shm has" in said
    assert "warning: the hosts' clocks differ by 5.0 s" in said
    pair = report["job"]["pairs"][0]
    assert (pair["transport"], pair["why_not_faster"]) == ("MPI", "SMDDP_NODES=2 emulates nodes")


def test_doctor_says_that_a_job_would_fail(tmp_path):
    """Alone, it starts a small one, and shows the sentence with which that fails."""
    code, output = run(DOCTOR, SMDDP_MPI_LIBRARY=str(tmp_path / "libmpi.so"))
    assert code == 1, output
    errors = [one for one in report_of(output)["findings"] if one["level"] == "error"]
    assert len(errors) == 1, errors
    assert "a job of 2 ranks failed" in errors[0]["what"]
    assert str(tmp_path / "libmpi.so") in errors[0]["what"]
    assert "mpirun -np 2" in errors[0]["remedy"]


@pytest.mark.parametrize("how", ["alone", "as a rank"])
def test_doctor_that_is_interrupted(tmp_path, how):
    """Ctrl-C while its ranks start, or wait for one that does not come: no traceback, no ranks."""
    pid = tmp_path / "pid"
    begin = ["sh", "-c", f'echo $$ >{pid}.new && mv {pid}.new {pid} && exec "$@"', "sh", *DOCTOR]
    if how == "as a rank":
        begin = [*launcher.mpirun(1), *begin, ":", "-np", "1", "sleep", "60"]
    process = subprocess.Popen(
        list(map(str, begin)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=launcher.environment({**WITH_MPIRUN, "SMDDP_TEST_DOCTOR": str(pid)}),
        start_new_session=True,
        # Of what a shell runs in the background it is ignored, and so of these tests perhaps.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 20
        while not (pid.exists() and _starts_mpirun(pid)) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0 if how == "alone" else 3)  # a rank soon waits for the other
        os.kill(int(pid.read_text()), signal.SIGINT)
        output, _ = process.communicate(timeout=20)
    finally:
        process.kill()
    assert "Traceback" not in output, output
    if how == "alone":
        assert (process.returncode, output) == (130, "")
    deadline = time.monotonic() + 5
    while (left := _processes_with(f"SMDDP_TEST_DOCTOR={pid}")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def _starts_mpirun(pid) -> bool:
    """Whether a process of the test's is a launcher, by its arguments."""
    for found in _processes_with(f"SMDDP_TEST_DOCTOR={pid}"):
        with contextlib.suppress(OSError):
            if b"-np" in pathlib.Path(f"/proc/{found}/cmdline").read_bytes():
                return True
    return False


def _processes_with(variable) -> list:
    """The process ids of those that have this in their environment."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if variable.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found
