"""smddprun called in unusual ways: words, files and launchers that are not as they mostly are."""

import os
import re
import subprocess
import sys

import pytest
from launch_line import line

from smddp_tf.launch import LaunchError, mpi, racks


def test_values_that_are_given_twice():
    """The last one holds, of options that stand for variables too."""
    words = "-np 2 -x A=1 -x SMDDP_LOG_LEVEL=info -x A=2 --log-level ERROR python t.py"
    assert line(words).endswith("none -x A=2 -x SMDDP_LOG_LEVEL=error python t.py")


def test_a_script_in_this_folder(tmp_path, monkeypatch):
    """With and without the right to execute it; where PATH leads elsewhere Python runs it."""
    monkeypatch.chdir(tmp_path)
    for mode in (0o644, 0o755):
        (tmp_path / "t.py").touch()
        (tmp_path / "t.py").chmod(mode)
        assert line("-np 2 t.py x").endswith("--bind-to none python t.py x")
    assert line("-np 2 ./t.py x").endswith("--bind-to none ./t.py x")
    (tmp_path / "t.sh").touch(0o644)
    for word in ("t.sh", "./t.sh"):
        with pytest.raises(LaunchError, match=f"{word} may not be executed"):
            line(f"-np 2 {word}")


def test_a_hostfile_of_windows(tmp_path):
    """With its mark at the beginning, and its line ends."""
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbfa slots=2\r\n\r\n# c\r\nb:1\r\n")
    assert "-H a:2,b:1 " in line(f"--hostfile {tmp_path}/f python t.py")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo no home; exit 1", "mpirun --version ends with exit code 1; it says:\nno home"),
        (r"printf 'Other \377\n'", "mpirun --version says 'Other \ufffd', which is none of"),
    ],
)
def test_an_mpirun_that_does_not_work(tmp_path, script, said):
    """What it says is shown whole, whatever its bytes are."""
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(f"#!/bin/sh\n{script}\n")
    mpirun.chmod(0o755)
    with pytest.raises(LaunchError, match=re.escape(said)):
        mpi.ask(str(mpirun))


def test_words_of_any_encoding(tmp_path):
    """A dry run prints them as they came."""
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.11'\n")
    mpirun.chmod(0o755)
    command = [sys.executable, "-m", "smddp_tf.launch", "-np", "1", "--dry-run", "--mpirun"]
    command += [mpirun, sys.executable, b"t\xff.py"]
    ran = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        timeout=600,
        check=True,
    )
    assert ran.stdout.endswith(b" 't\xff.py'\n")


def test_a_scontrol_that_does_not_speak_utf8(tmp_path, monkeypatch):
    """What it says of switches counts all the same."""
    said = r"printf 'SwitchName=r\374ck Nodes=a\n'"
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\n{said}\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert racks.ask({"SLURM_JOB_ID": "7"}) == "SwitchName=r\ufffdck Nodes=a\n"
