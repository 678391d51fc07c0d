"""What smddprun does when a job fails: it starts it again, and finds the traceback that matters."""

import contextlib
import os
import pathlib
import signal
import socket
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


LOST = b"PRTE has lost communication with a remote daemon."


@pytest.mark.parametrize(
    ("tagged", "line", "lost"),
    [
        (True, LOST, True),
        (True, b"ORTE" + LOST[4:], True),
        (True, b"A daemon failed to report back after being spawned. This could", True),
        (True, b"[1,0]<stderr>: " + LOST, False),  # a rank prints that
        (False, LOST, True),
        (False, b"I wonder whether " + LOST, False),
    ],
)
def test_a_lost_host_is_noticed(tagged, line, lost):
    """In the launcher's own lines."""
    found = Tracebacks(tagged)
    found.feed(b"----\n" + line[:9])
    found.feed(line[9:] + b"\n\n  HNP daemon")
    assert found.lost_host == lost


def test_a_job_that_lost_a_host_has_failed(capfd):
    """Although the launcher returns 0."""
    script = f"echo '{LOST.decode()}' >&2"
    ended = supervise.run(["sh", "-c", script], os.environ, False)
    assert (ended.code, ended.cause) == (1, supervise.LOST_HOST)
    assert LOST.decode() in capfd.readouterr().err
    ended = supervise.run(["sh", "-c", f"{script}; exit 7"], os.environ, False)
    assert (ended.code, ended.cause) == (7, "")


def test_what_a_job_of_several_hosts_prints_arrives(tmp_path):
    """Whole and in order, although its reader is slow; a loss on stdout is a failure too."""
    script = f"seq 1 40000; echo '{LOST.decode()}'"
    program = f"""import os
from smddp_tf.launch import supervise
told = {{**os.environ, "SMDDP_LAUNCH_HOSTS": "a:1"}}
raise SystemExit(40 + supervise.run(["sh", "-c", {script!r}], told, False).code)"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        time.sleep(6)  # the launcher has ended long since
        said = process.stdout.read().decode().splitlines()
    assert said == [*map(str, range(1, 40001)), LOST.decode()]
    assert process.returncode == 41


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


TRACED = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
FailedPreconditionError: Graph execution error:

Detected at node step
{more}"""


@pytest.mark.parametrize("tag", ["[1,1]<stderr>:", "[1,1]<stderr>: ", "[1] "])
def test_messages_of_several_lines(tag):
    """All that follows "in user code:" or the like; of others what is blank or indented.

    Without tags the latter is all that is known to be the rank's.
    """

    def shown(text, tag):
        found = Tracebacks(bool(tag))
        found.feed("".join(f"{tag}{line}\n" for line in text.splitlines()).encode())
        return found.cause().split("\n", 1)[1]

    traced = TRACED.format(more="ranks differ: rank 1 has 3 values\n\t [[{{node step}}]]")
    assert shown(traced + "\n\n", tag) == traced
    assert shown(traced, "") == traced.split("\n\nDetected")[0]
    listed = TRACEBACK.format(rank=1) + "  variable a differs\n\n  variable b differs"
    assert shown(listed + "\nanother line\n", tag) == listed == shown(listed + "\nmpirun\n", "")
    long = TRACED.format(more="line\n" * 300)
    assert len(shown(long, tag).splitlines()) == 4 + 200
    # The last traceback counts, whatever the one before would take.
    chained = traced + "\n\nDuring handling of that one\n\n" + TRACEBACK.format(rank=1)
    assert shown(chained, tag) == TRACEBACK.format(rank=1).rstrip()


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
RUN += "supervise.GRACE_SECONDS = {grace}; print(supervise.run(sys.argv[1:], {{}}, False).code)"
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


# Ends with code 1 at SIGTERM, and leaves its ranks, of which both ignore it: as Open MPI 4's mpirun
# does at a second signal.
LEAVING = LAUNCHER.replace('("", "TERM")', '("TERM", "TERM")').replace(
    "time.sleep(600)", "import signal; signal.sigwait([signal.SIGTERM]); sys.exit(1)"
)
LEAVING = "import signal; signal.pthread_sigmask(0, [signal.SIGTERM])\n" + LEAVING
# Fails, and leaves what its ranks had started.
FAILING = LAUNCHER.replace("time.sleep(600)", "sys.exit(3)")


def runs(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return b"\0" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()  # "" after its end
    return False


def started(tmp_path, launcher: str, grace: float = 1, **options):
    """A smddprun of this launcher, once that is up, the launcher's process id, and its ranks'."""
    process = subprocess.Popen(
        [sys.executable, "-c", RUN.format(grace=grace), sys.executable, "-c", launcher],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        cwd=tmp_path,
        stdout=(tmp_path / "said").open("w"),  # a pipe would be open as long as a rank runs
        **options,
    )
    limit = time.monotonic() + 60
    while not (tmp_path / "up").exists() or not (tmp_path / "up").read_text():
        assert time.monotonic() < limit
        time.sleep(0.05)
    ranks = [int((tmp_path / f"rank{number}").read_text()) for number in range(2)]
    return process, int((tmp_path / "up").read_text()), ranks


def all_end(pids, seconds: float) -> bool:
    """Whether none of them runs any more within so many seconds; those that do are ended."""
    limit = time.monotonic() + seconds
    while any(map(runs, pids)) and time.monotonic() < limit:
        time.sleep(0.05)
    left = list(filter(runs, pids))
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return not left


@pytest.mark.parametrize("killed", ["launcher", "smddprun"])
def test_nothing_goes_on_after_a_kill(tmp_path, killed):
    """Of mpirun: its ranks end before the job starts again. Of smddprun: mpirun gets SIGTERM.

    As MPICH's, this mpirun then leaves the ranks, of which one ignores SIGTERM.
    """
    process, launcher, ranks = started(tmp_path, LAUNCHER)
    if killed == "launcher":
        os.kill(launcher, signal.SIGKILL)
        process.wait(60)
        assert (tmp_path / "said").read_text() == "137\n"
        assert all_end(ranks, 0)
    else:
        process.kill()
        process.wait(60)
        assert all_end([launcher, *ranks], 60)


def test_plain_ranks_do_not_go_on_for_long(tmp_path):
    """Of smddprun that is killed: those that do not ignore SIGTERM get it soon."""
    process, launcher, (plain, deaf) = started(tmp_path, LAUNCHER, grace=60)
    try:
        process.kill()
        process.wait(60)
        assert all_end([launcher, plain], 20)
        assert runs(deaf)
    finally:
        all_end([deaf], 0)


def test_nothing_goes_on_after_a_launcher_that_leaves_its_ranks(tmp_path):
    process, _, ranks = started(tmp_path, LEAVING)
    process.terminate()
    process.wait(60)
    assert (tmp_path / "said").read_text() == "1\n"
    assert all_end(ranks, 0)


def test_nothing_goes_on_after_a_failure(tmp_path):
    """What ranks had started would be beside the ranks of the next attempt."""
    process, _, ranks = started(tmp_path, FAILING)
    process.wait(60)
    assert (tmp_path / "said").read_text() == "3\n"
    assert all_end(ranks, 0)


OTHERS = """
import subprocess, sys
from smddp_tf.launch import supervise
with subprocess.Popen(["sleep", "600"]) as other:
    code = supervise.run([sys.executable, "-c", "raise SystemExit(3)"], {}, False).code
    print(code, other.poll())
    other.kill()
"""


def test_what_ran_before_the_job_goes_on():
    """As sshd in a container, or what a script started before it became smddprun."""
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", OTHERS]
    said = subprocess.check_output(command, env=environment, timeout=60, text=True)
    assert said == "3 None\n"


def test_what_may_not_be_ended(monkeypatch):
    """A process of another user's, as sudo makes, does not hide how the job ended."""

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(supervise, "ORPHAN_SECONDS", 0.1)
    monkeypatch.setattr(supervise, "children", lambda: [1])
    monkeypatch.setattr(os, "kill", refuse)
    supervise.end_orphans(set())


def test_signals_for_ranks(tmp_path):
    """SIGUSR1, as before a time limit, reaches the launcher, and the job goes on."""
    script = """
import pathlib, signal
signal.pthread_sigmask(0, [signal.SIGUSR1, signal.SIGUSR2])
for name in ("rank0", "rank1"):
    pathlib.Path(name).write_text("0")
pathlib.Path("up").write_text("1")
assert {signal.sigwait([signal.SIGUSR1, signal.SIGUSR2]) for _ in range(2)} == {10, 12}
"""
    process, *_ = started(tmp_path, script)
    process.send_signal(signal.SIGUSR1)
    process.send_signal(signal.SIGUSR2)
    process.wait(60)
    assert (tmp_path / "said").read_text() == "0\n"


def test_stderr_that_does_not_block():
    """Somebody who shares it made it so; nothing is lost where the reader is slow."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    script = "import os; [os.write(2, b'x' * 999 + b'\\n') for _ in range(2000)]"
    with subprocess.Popen(
        [sys.executable, "-c", RUN.format(grace=1), sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=writing,
    ) as process:
        os.close(writing)
        time.sleep(1)
        with os.fdopen(reading, "rb") as stream:
            assert len(stream.read()) == 2_000_000
        assert process.communicate(timeout=60)[0] == b"0\n"


def test_what_it_says_is_one_piece(monkeypatch):
    """Also where Python does not buffer: a rank's line may come at any time."""
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    script = "from smddp_tf.launch import supervise; supervise.say('that it is so')"
    with ours, theirs:
        ours.settimeout(60)
        subprocess.run([sys.executable, "-c", script], stderr=theirs, check=True)
        assert ours.recv(1000) == b"smddprun: that it is so\n"
