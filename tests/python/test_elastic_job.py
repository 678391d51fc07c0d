"""Elastic jobs of real processes, without TensorFlow: smddprun's side of what keeps them going."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pytest

from smddp_tf.launch import reaper
from smddp_tf.launch.elastic.slots import Slot

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "tests/scripts/elastic_rank.py"
MPIRUN = pathlib.Path(sys.executable).with_name("mpirun")
LIMIT = 60  # seconds


def until(condition):
    """What the condition returns when it is true."""
    deadline = time.monotonic() + LIMIT
    while not (found := condition()):
        assert time.monotonic() < deadline, condition
        time.sleep(0.02)
    return found


class Job:
    """smddprun, and what its ranks note in a folder."""

    def __init__(self, folder, *words, mpirun=MPIRUN, does=()):
        self.folder, self._output = folder, folder / "output"
        (folder / "tmp").mkdir()
        command = [sys.executable, "-m", "smddp_tf.launch", "--mpirun", mpirun, *words]
        with open(self._output, "wb") as output:
            self.process = subprocess.Popen(
                [*map(str, command), sys.executable, str(SCRIPT), str(folder), *does],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp")},
                # What a shell starts in the background ignores it, and so would smddprun then.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(LIMIT)
            self.process.kill()
        if kind is not None:
            print(self.output())

    def output(self):
        return self._output.read_text(errors="replace")

    def pid(self, slot):
        return int(until(lambda: _text(self.folder / f"pid.{slot}")))

    def epochs(self, slot):
        """(epoch, rank, size) and the step that it began with, of each that the slot was in."""
        lines = map(json.loads, _text(self.folder / f"epochs.{slot}").splitlines())
        return {(one["epoch"], one["rank"], one["size"]): one["step"] for one in lines}

    def reaches(self, epoch, slots):
        """Waits for slots to be the ranks of an epoch, in this order; returns its first step."""
        for rank, slot in enumerate(slots):
            place = epoch, rank, len(slots)
            until(lambda slot=slot, place=place: place in self.epochs(slot))
        time.sleep(0.2)  # some steps
        return self.epochs(slots[0])[epoch, 0, len(slots)]

    def kill(self, slot, number=signal.SIGKILL):
        os.kill(self.pid(slot), number)

    def stops(self):
        (self.folder / "stop").touch()

    def ends(self, code):
        """Waits for smddprun; nothing is left of the job, neither processes nor files."""
        ended = self.process.wait(LIMIT)
        print(self.output())  # pytest shows it if the test fails
        assert ended == code
        left = [int(_text(path)) for path in self.folder.glob("pid.*")]
        until(lambda: not any(map(_runs, left)))
        assert list((self.folder / "tmp").iterdir()) == []
        return self.output()


def _text(path):
    return path.read_text() if path.exists() else ""


def _runs(pid):
    """Whether the process is one of these jobs' and has not ended."""
    with contextlib.suppress(OSError):
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return stat[0] != "Z" and str(SCRIPT) in pathlib.Path(f"/proc/{pid}/cmdline").read_text()
    return False


@pytest.mark.parametrize("mpi", ["openmpi", "mpich", "impi"])
def test_two_ranks_are_killed(tmp_path, mpi):
    """One after the other; the rest goes on from the step where it was."""
    mpirun = MPIRUN if mpi == "openmpi" else ROOT / f".venv-{mpi}/bin/mpirun"
    if not mpirun.exists():
        pytest.skip(f"no .venv-{mpi}; `make test` makes .venv-mpich")
    with Job(tmp_path, "-np", 4, "--min-np", 2, mpirun=mpirun) as job:
        assert job.reaches(1, [0, 1, 2, 3]) == 0
        job.kill(0)
        second = job.reaches(2, [1, 2, 3])
        job.kill(2)
        third = job.reaches(3, [1, 3])
        assert 0 < second < third
        job.stops()
        output = job.ends(0)
    said = [line for line in output.splitlines() if line.startswith("smddprun: ")]
    assert said == [
        *(f"smddprun: slot {slot} starts" for slot in range(4)),
        "smddprun: 4 ranks begin as epoch 1",
        "smddprun: rank 0 (slot 0) was lost",
        "smddprun: 3 ranks go on as epoch 2",
        "smddprun: rank 1 (slot 2) was lost",
        "smddprun: 2 ranks go on as epoch 3",
    ]
    assert "\n[3] void: rank 0 (slot 0) was lost\n" in output
    assert "\n[3] slot 3 ends at step " in output


def test_a_launcher_is_killed(tmp_path):
    """Its rank is ended with it, and the others go on."""
    with Job(tmp_path, "-np", 2, "--min-np", 1, "--no-tag-output") as job:
        job.reaches(1, [0, 1])
        stat = pathlib.Path(f"/proc/{job.pid(0)}/stat").read_text()
        os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
        job.reaches(2, [1])
        until(lambda: not _runs(job.pid(0)))
        job.stops()
        assert "\nslot 1 ends at step " in job.ends(0)


def test_ranks_come_and_go(tmp_path):
    """As the script says: a lost one is replaced, another joins, two leave."""
    script, hosts = tmp_path / "hosts.sh", tmp_path / "hosts"
    script.write_text(f"#!/bin/sh\ncat {hosts}\n")
    script.chmod(0o755)
    hosts.write_text("localhost:2\n")
    words = ["-np", 2, "--min-np", 1, "--max-np", 3, "--host-discovery-script", script]
    with Job(tmp_path, *words) as job:
        job.reaches(1, [0, 1])
        job.kill(0)
        until(lambda: (tmp_path / "epochs.2").exists())
        # The newcomer may be in the epoch after the loss, or in the one after that.
        epoch = max(number for number, *_ in job.epochs(2))
        second = job.reaches(epoch, [1, 2])
        hosts.write_text("localhost:4\n")
        third = job.reaches(epoch + 1, [1, 2, 3])
        hosts.write_text("localhost\n")
        fourth = job.reaches(epoch + 2, [1])
        assert 0 < second < third < fourth
        until(lambda: not (_runs(job.pid(2)) or _runs(job.pid(3))))
        job.stops()
        output = job.ends(0)
    assert "smddprun: rank 2 (slot 3) leaves\n" in output
    assert "[3] slot 3 ends at step " in output


def test_too_few_ranks(tmp_path):
    """Those that are left are told, and the exit code is the lost one's."""
    with Job(tmp_path, "-np", 2, "--min-np", 2) as job:
        job.reaches(1, [0, 1])
        job.kill(1)
        output = job.ends(128 + signal.SIGKILL)
    few = "1 rank can train, and --min-np is 2; no --host-discovery-script finds others"
    assert f"smddprun: {few}\n" in output
    assert f"[0] RuntimeError: {few}\n" in output


def test_too_few_ranks_for_too_long(tmp_path):
    """A script that finds none is asked until --elastic-timeout."""
    script = tmp_path / "hosts.sh"
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    words = ["-np", 2, "--host-discovery-script", script, "--elastic-timeout", 10]
    with Job(tmp_path, *words) as job:
        job.reaches(1, [0, 1])
        job.kill(0)
        output = job.ends(128 + signal.SIGKILL)
    assert "smddprun: after --elastic-timeout 10, 1 rank can train, and --min-np is 2" in output
    assert output.count("hosts.sh: it ended with exit code 1\n") == 1


def test_a_rank_stands_still(tmp_path):
    """Its peers ask for another epoch, and it is killed; no signal but that one ends it."""
    words = ["-np", 3, "--min-np", 2, "--fence-after", 1]
    with Job(tmp_path, *words, does=["patience=1"]) as job:
        job.reaches(1, [0, 1, 2])
        job.kill(1, signal.SIGSTOP)
        job.reaches(2, [0, 2])
        assert not _runs(job.pid(1))
        job.stops()
        output = job.ends(0)
    assert "smddprun: rank 1 (slot 1) was silent for 1 s, and is killed\n" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_job(tmp_path, number):
    """With ranks that ignore it too; it does not start again."""
    words = ["-np", 2, "--min-np", 1, "--max-restarts", 3]
    with Job(tmp_path, *words, does=["ignores=1"]) as job:
        job.reaches(1, [0, 1])
        job.process.send_signal(number)
        output = job.ends(128 + number)
    assert "starts again" not in output
    assert "was lost" not in output


def test_nothing_is_left_when_smddprun_is_killed(tmp_path):
    """Its launchers end with it, and the reaper ends what they leave."""
    with Job(tmp_path, "-np", 2, "--min-np", 1) as job:
        job.reaches(1, [0, 1])
        job.process.kill()
        until(lambda: not (_runs(job.pid(0)) or _runs(job.pid(1))))


def test_a_wrong_secret(tmp_path):
    """Such a rank is not let in; nor are strangers, and what they send changes nothing."""
    with Job(tmp_path, "-np", 3, "--min-np", 2, does=["forges=1"]) as job:
        job.reaches(1, [0, 2])
        environment = pathlib.Path(f"/proc/{job.pid(0)}/environ").read_bytes().split(b"\0")
        (address,) = (one for one in environment if one.startswith(b"SMDDP_RENDEZVOUS="))
        host, _, port = address.partition(b"=")[2].decode().rpartition(":")
        assert host == "127.0.0.1"
        for sent in (b"GET / HTTP/1.1\r\n\r\n" * 10, b"\xff" * 100, b"\0" * 100):
            with socket.create_connection((host, int(port)), timeout=LIMIT) as stranger:
                assert len(stranger.recv(100)) == 16
                stranger.sendall(sent)
                with contextlib.suppress(ConnectionResetError):
                    assert stranger.recv(100) == b""
        job.stops()
        output = job.ends(0)
    refused = "smddprun: a rank's connection is closed: ValueError: a frame is not signed with"
    assert refused in output
    assert "[1] ConnectionError: smddprun has closed the connection\n" in output


def test_two_processes_of_a_slot(tmp_path):
    """A child has its parent's environment; it is refused, and the parent goes on."""
    with Job(tmp_path, "-np", 2, "--min-np", 1, does=["twin=1"]) as job:
        job.reaches(1, [0, 1])
        job.stops()
        output = job.ends(0)
    assert "[1] the twin is refused\n" in output
    assert "ValueError: slot 1 is connected already\n" in output


@pytest.mark.parametrize(("who", "code"), [("1", 0), ("all", 3)])
def test_exit_codes_after_the_training(tmp_path, who, code):
    """One rank that ends well is enough; if there is none, the job has failed."""
    with Job(tmp_path, "-np", 2, "--min-np", 1, does=[f"exits={who}"]) as job:
        job.reaches(1, [0, 1])
        job.stops()
        output = job.ends(code)
    assert "smddprun: rank 1 (slot 1) ended with exit code 3\n" in output


def test_a_script_that_fails(tmp_path):
    """On all ranks: the job starts again as often as it may, and its traceback comes last."""
    words = ["-np", 2, "--min-np", 1, "--max-restarts", 1]
    with Job(tmp_path, *words, does=["fails=all"]) as job:
        output = job.ends(1)
    assert "smddprun: the job failed with exit code 1; it starts again (1 of 1)\n" in output
    *_, error, last = output.splitlines()
    assert error.startswith("ValueError: of slot ")
    assert last.endswith("the job failed with exit code 1, and was started again 1 times")


def test_output_goes_to_files_too(tmp_path):
    """Of each slot in a folder of its own."""
    with Job(tmp_path, "-np", 2, "--min-np", 1, "--output-filename", tmp_path / "out") as job:
        job.reaches(1, [0, 1])
        job.stops()
        job.ends(0)
    for slot in range(2):
        text = "".join(path.read_text() for path in (tmp_path / "out" / str(slot)).iterdir())
        assert f"slot {slot} ends at step " in text


def test_processes_are_found_by_all_their_settings():
    """Those that have only one of them are others'."""
    environment = {**os.environ, "SMDDP_LAUNCH_JOB": "of this test", "SMDDP_RENDEZVOUS_SLOT": "7"}
    process = subprocess.Popen(["sleep", "60"], env=environment)
    try:
        of_job, of_slot = "SMDDP_LAUNCH_JOB=of this test", "SMDDP_RENDEZVOUS_SLOT="
        until(lambda: reaper.processes_of("of this test") == [process.pid])
        assert reaper.processes_with(of_job, of_slot + "7") == [process.pid]
        assert reaper.processes_with(of_job, of_slot + "77") == []
    finally:
        process.kill()
        process.wait(LIMIT)


@pytest.mark.parametrize("own_folder", [True, False])
def test_a_killed_mpirun_leaves_nothing(tmp_path, monkeypatch, own_folder):
    """Of what it keeps there, by itself or because a slot on another host has no own folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = "mkdir ${PRTE_MCA_prte_tmpdir_base:-$TMPDIR}/ompi.$$ && kill -9 $$"
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path), reaper.VARIABLE: "job"}
    slot = Slot(3, ["sh", "-c", folder], environment, False, own_folder)
    until(lambda: slot.code() is not None)
    assert slot.code() == 128 + signal.SIGKILL
    (left,) = tmp_path.glob(f"**/ompi.{slot.process_id}")
    assert (left.parent == tmp_path) != own_folder
    slot.finish()
    assert list(tmp_path.iterdir()) == []
