"""What smddprun does when a job fails: it starts it again, and finds the traceback that matters."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from smddp_tf.launch import supervise
from smddp_tf.launch.tracebacks import Tracebacks


def outcomes(*codes, **more):
    """A stand-in for run(): ends with these codes, and notes what it was given."""
    seen = []

    def once(command, environment, tagged):
        seen.append(environment["SMDDP_RESTART"])
        return supervise.Outcome(codes[len(seen) - 1], **more)

    return once, seen


def test_restarts(capsys):
    """Until it succeeds, or as often as allowed; not after a signal to smddprun."""
    once, seen = outcomes(1, 137, 0)
    assert supervise.run_with_restarts([], {}, 5, once=once).code == 0
    assert seen == ["0", "1", "2"]
    assert "exit code 137; it starts again (2 of 5)" in capsys.readouterr().err
    once, seen = outcomes(1, 3, cause="the traceback of rank 1")
    assert supervise.run_with_restarts([], {}, 1, once=once).code == 3
    err = capsys.readouterr().err
    assert err.endswith(
        "rank 1\nsmddprun: the job failed with exit code 3, and was started again 1 times\n"
    )
    once, seen = outcomes(130, interrupted=True)
    assert supervise.run_with_restarts([], {}, 5, once=once).code == 130
    assert seen == ["0"]


TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
ValueError: of rank {rank}
"""


@pytest.mark.parametrize(
    ("tag", "tagged"),
    [
        ("[1,{rank}]<stderr>:", 1),
        ("[1,{rank}]<stderr>: ", 1),
        ("Sun Nov  1 22:30:39 2026[1,{rank}]<stderr>:", 1),
        ("[Sun Nov 22 22:30:39 2026][1,{rank}]<stderr>: ", 1),
        ("[{rank}] ", 1),
        ("{rank}: ", 1),
    ],
)
def test_tracebacks_are_told_apart_by_tags(tag, tagged):
    """Those of two ranks, line by line in turn, in pieces of any size."""
    lines = [TRACEBACK.format(rank=rank).splitlines() for rank in (2, 1)]
    text = ""
    for pair in zip(*lines, strict=True):
        text += tag.format(rank=2) + pair[0] + "\n" + tag.format(rank=1) + pair[1] + "\n"
    for piece in (1, 7, 10_000):
        for blame, rank in (("", 2), ("  Process name: [prterun-h-7@1,1]\n", 1)):
            found = Tracebacks(bool(tagged))
            whole = (text + blame).encode()
            for i in range(0, len(whole), piece):
                found.feed(whole[i : i + piece])
            wanted = TRACEBACK.format(rank=rank).rstrip()
            assert found.cause() == f"the traceback of rank {rank} that ended the job:\n{wanted}"


def test_tags_inside_of_lines():
    """Open MPI 4 puts one before each piece that a rank wrote."""
    for tag in ("[1,4]<stderr>:", "Sun Nov 22 22:30:39 2026[1,4]<stderr>:"):
        found = Tracebacks(True)
        lines = TRACEBACK.format(rank=4).replace("    main", f"    {tag}main").splitlines()
        found.feed("".join(f"{tag}{line}\n" for line in lines).encode())
        assert found.cause().split("\n", 1)[1] == TRACEBACK.format(rank=4).rstrip()


def test_tags_of_mpich_inside_of_lines():
    """It puts one before whatever it has read at once, which may be a part of a line."""
    found = Tracebacks(True)
    *whole, last = TRACEBACK.format(rank=1).splitlines()
    text = "".join(f"[1] {line}\n" for line in whole) + "[1] " + last.replace(": ", "[1] : [1] ")
    found.feed((text + "[1] \n").encode())
    assert found.cause().split("\n", 1)[1] == TRACEBACK.format(rank=1).rstrip()


def test_tracebacks_without_tags():
    """The first; and none where there is none."""
    found = Tracebacks(False)
    found.feed(b"a warning\n" + TRACEBACK.format(rank=0).encode() + b"mpirun has exited\n")
    assert found.cause().endswith("ValueError: of rank 0")
    mixed = Tracebacks(False)
    lines = TRACEBACK.format(rank=0).splitlines(keepends=True)
    mixed.feed("".join(line + line for line in lines).encode())
    assert mixed.cause() == ""
    silent = Tracebacks(True)
    silent.feed(b"[1,0]<stderr>: all is well\nmpirun noticed that it was killed\n")
    assert silent.cause() == ""


@pytest.mark.parametrize("tag", ["", "[1,1]<stderr>:", "[1,1]<stderr>: ", "[1] "])
def test_a_traceback_after_a_progress_bar(tag):
    """Which has not ended its line, however long it has become; no more than two ends are kept."""
    found = Tracebacks(bool(tag))
    found.feed(tag.encode())
    for step in range(4000):
        found.feed(b"\r%4d/4000 [======>          ] loss: 0.125, %s" % (step, b"." * 60))
        assert len(found._rest) < 1 << 18
    first, *others = TRACEBACK.format(rank=1).splitlines(keepends=True)
    found.feed(first.encode() + "".join(tag + line for line in others).encode())
    assert found.cause().split("\n", 1)[1] == TRACEBACK.format(rank=1).rstrip()


RUN = "import sys; from smddp_tf.launch import supervise; "
RUN += "supervise.GRACE_SECONDS = 1; print(supervise.run(sys.argv[1:], {}, False).code)"
# Stands for mpirun: starts two ranks as that does, one of which ignores SIGTERM, and waits.
LAUNCHER = """
import os, pathlib, subprocess, sys, time
for number, ignored in enumerate(("", "TERM")):
    script = f"trap '' {ignored}; echo $$ > rank; mv rank rank{number}; while :; do sleep 0.1; done"
    subprocess.Popen(["sh", "-c", script], start_new_session=True)
    while not os.path.exists(f"rank{number}"):
        time.sleep(0.05)
pathlib.Path("up").write_text(str(os.getpid()))
time.sleep(600)
"""


def runs(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return b"\0" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()  # "" after its end
    return False


@pytest.mark.parametrize("killed", ["launcher", "smddprun"])
def test_nothing_goes_on_after_a_kill(tmp_path, killed):
    """Of mpirun: its ranks end before the job starts again. Of smddprun: mpirun gets SIGTERM.

    As MPICH's, this mpirun then leaves the ranks, of which one ignores SIGTERM.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, sys.executable, "-c", LAUNCHER],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        cwd=tmp_path,
        stdout=(tmp_path / "said").open("w"),  # a pipe would be open as long as a rank runs
    )
    limit = time.monotonic() + 60
    while not (tmp_path / "up").exists() or not (tmp_path / "up").read_text():
        assert time.monotonic() < limit
        time.sleep(0.05)
    launcher = int((tmp_path / "up").read_text())
    ranks = [int((tmp_path / f"rank{number}").read_text()) for number in range(2)]
    try:
        if killed == "launcher":
            os.kill(launcher, signal.SIGKILL)
            process.wait(60)
            assert (tmp_path / "said").read_text() == "137\n"
            assert not any(map(runs, ranks))
        else:
            process.kill()
            process.wait(60)
            while any(map(runs, [launcher, *ranks])) and time.monotonic() < limit:
                time.sleep(0.05)
            assert not any(map(runs, [launcher, *ranks]))
    finally:
        for pid in filter(runs, [launcher, *ranks]):
            os.kill(pid, signal.SIGKILL)
