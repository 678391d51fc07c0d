"""Jobs on several hosts: real networks, host names, processes and /dev/shm of their own."""

import json
import pathlib
import re
import subprocess
import sys
import threading
import time

import pytest
from namespaces import Hosts, HostsError, why_not

HERE = pathlib.Path(__file__).resolve().parent


@pytest.fixture(autouse=True)
def _needs_hosts():
    reason = why_not()
    if reason:
        pytest.skip(reason)


@pytest.mark.quiet
@pytest.mark.parametrize("ranks", [[2, 2], [1, 1, 1], [2, 1]], ids=lambda ranks: f"{ranks}")
def test_every_collective(ranks):
    """All collectives are right, and sums send what they need to and little more."""
    with Hosts(len(ranks), rate="1gbit") as hosts:
        output = hosts.mpirun(ranks, [sys.executable, HERE / "body.py"], timeout=120)
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    places = sorted((row["place"][0], row["host"], *row["place"][1:]) for row in rows)
    wanted = [(h, local) for h, count in enumerate(ranks) for local in range(count)]
    assert places == [(r, f"host{h + 1}", h, local) for r, (h, local) in enumerate(wanted)], output
    # Partial sums of 16-bit floats are float32 where a host has several ranks.
    wide = 1.5 if max(ranks) > 1 else 1.0
    for row in rows:
        for name, times in row["traffic"].items():
            need = wide if name == "bfloat16" else 1.0
            assert need * 0.99 < times < need * 1.05, (ranks, name, row["traffic"])


def test_a_slow_link_is_no_timeout():
    """A collective may take longer than the limit, as long as its bytes move."""
    ranks, limit = [2, 1], 1.5
    env = {"SMDDP_TIMEOUT_SECONDS": str(limit), "PYTHONPATH": str(HERE)}
    with Hosts(len(ranks), rate="16mbit") as hosts:
        output = hosts.mpirun(ranks, [sys.executable, HERE / "body_slow.py"], timeout=150, env=env)
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert len(rows) == sum(ranks), output
    for name in rows[0]:
        # What goes out of a host last may still be in the kernel's buffers when it is done.
        assert max(row[name] for row in rows) > 1.2 * limit, (name, rows)


def what_survivors_say(ranks, launcher, folder):
    """Kills the last rank in the middle of a sum; returns what each of the others has written."""
    victim = sum(ranks) - 1
    folder.mkdir()
    program = [sys.executable, HERE / "body_killed.py", victim, folder]
    late = {"SMDDP_TIMEOUT_SECONDS": "40"}  # what a hang would show as
    with Hosts(2) as hosts:
        with pytest.raises(HostsError, match="exit") as ended:
            getattr(hosts, launcher)(ranks, program, timeout=60, env=late)
        end, deadline = time.monotonic(), time.monotonic() + 5
        while hosts.left_behind() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert hosts.left_behind() == []
    assert (folder / "messages0").read_text() == "ob1"  # smddprun: since there is only Ethernet
    killed = float((folder / f"at{victim}").read_text())
    assert end - killed < 10, str(ended.value)
    found = []
    for survivor in range(victim):
        text, at = folder / f"text{survivor}", folder / f"at{survivor}"
        said = (folder / f"err{survivor}").read_text()
        said += text.read_text() if text.exists() else ""
        assert said == "" or "allreduce 'sum" in said, said
        if at.exists():
            assert float(at.read_text()) - killed < 2, said
        found.append(said)
    return found


@pytest.mark.parametrize(("ranks", "launcher"), [([2, 2], "mpirun"), ([1, 1], "smddprun")])
def test_a_killed_rank(ranks, launcher, tmp_path):
    """In the middle of a sum: all others say so, end within seconds, and nothing is left.

    A peer on its host can name the rank. The others know what they waited for, and that a rank of
    another host has died; or the launcher ends them while they are inside MPI. It kills a quarter
    of a second after SIGTERM, which on a busy machine a rank may not live to answer: then again.
    """
    known = rf"rank {sum(ranks) - 1} \(process \d+\) died|a rank on another node has died"
    known += "|ended by SIGTERM (while|in the middle)"
    for attempt in range(3):
        said = what_survivors_say(ranks, launcher, tmp_path / str(attempt))
        if all(re.search(known, one) for one in said):
            return
        assert all(one == "" or re.search(known, one) for one in said), said
    pytest.fail(f"some ranks were silent each time; the last time: {said}")


def test_the_cause_reaches_other_hosts(tmp_path):
    """Also those that exchange nothing with the rank that was killed, if mpirun ends nobody.

    Open MPI's fault tolerance then refuses to look for messages of any rank.
    """
    program = [sys.executable, HERE / "body_killed.py", 2, tmp_path]
    late = {"SMDDP_TIMEOUT_SECONDS": "40"}  # what a hang would show as
    with Hosts(2) as hosts, pytest.raises(HostsError, match="exit 1\n"):
        hosts.mpirun([1, 2], program, timeout=60, env=late, options=["--enable-recovery"])
    killed = float((tmp_path / "at2").read_text())
    for survivor in (0, 1):
        said = (tmp_path / f"text{survivor}").read_text()
        assert re.search(r"rank 2 \(process \d+\) died while rank 1 waited", said), said
        assert float((tmp_path / f"at{survivor}").read_text()) - killed < 5


def test_a_lost_host(tmp_path):
    """All its processes end at once, as of a pod that is deleted: smddprun fails.

    mpirun of Open MPI 5.0.11 ends the job and returns 0, so schedulers would take it as done.
    """
    program = [sys.executable, HERE / "body_killed.py", -1, tmp_path]

    def lose(hosts):
        deadline = time.monotonic() + 40
        while len(list(tmp_path.glob("messages*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)  # for sums to be under way
        hosts.lose(1)

    with Hosts(2) as hosts:
        loser = threading.Thread(target=lose, args=[hosts])
        loser.start()
        begin = time.monotonic()
        with pytest.raises(HostsError, match="exit 1\n") as ended:
            hosts.smddprun([1, 1], program, timeout=60)
        loser.join()
    assert time.monotonic() - begin < 25  # the job would go on for 30 s
    assert "smddprun: the job failed with exit code" in str(ended.value)


def cut(hosts, how):
    """Between the last two hosts nothing is sent: it is lost on the way, or refused."""
    for host, other in ((1, 2), (2, 1)):
        ip = ["nsenter", "-t", str(hosts.pids()[host]), "-n", "ip"]
        to = hosts.addresses[other]
        nobody = ["lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent"]
        lost, refused = ["neigh", "add", to, *nobody], ["route", "add", "blackhole", to]
        subprocess.run([*ip, *(lost if how == "lost" else refused)], check=True, timeout=20)


@pytest.mark.parametrize("how", ["lost", "refused"])
def test_two_hosts_that_cannot_reach_each_other(how, tmp_path):
    """Others reach both, so some ranks may meet all: an error on every rank, and in time."""
    env = {"PYTHONPATH": str(HERE.parents[1]), "SMDDP_TIMEOUT_SECONDS": "5"}
    with Hosts(3) as hosts:
        cut(hosts, how)
        program = [sys.executable, HERE / "body_unreachable.py", tmp_path]
        with pytest.raises(HostsError, match="exit"):
            hosts.mpirun([1, 1, 1], program, timeout=60, env=env)
    for rank in range(3):
        seconds, said = (tmp_path / str(rank)).read_text().split(" ", 1)
        assert float(seconds) < 25, said  # to meet, and to be connected: at least 10 s each
        if how == "lost" or "ranks of this job can no longer" in said:
            assert "some hosts cannot reach each other" in said
        else:
            assert "MPI_ERR_PROC_FAILED" in said  # of a rank that had met the others


def test_the_doctor_sees_a_shared_session_folder(tmp_path):
    """Of Open MPI's daemons of two hosts; with one each there is nothing to say."""
    program = [sys.executable, "-m", "smddp_tf.doctor", "--quick"]
    env = {"PYTHONPATH": str(HERE.parents[1])}
    with Hosts(2) as hosts:
        # Else both daemons have the same process id, and may disturb each other in that folder.
        hosts.start(0, ["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do sleep 0 & done; wait"]).wait(9)
        shared = ["--prtemca", "prte_tmpdir_base", str(tmp_path)]
        output = hosts.mpirun([1, 1], program, timeout=60, env=env, options=shared)
        assert re.search(rf"WARNING: host\d and host\d share {tmp_path}, where Open MPI 5", output)
        output = hosts.mpirun([1, 1], program, timeout=60, env=env)
        assert "a job can run" in output, output
        assert "apart by process ids" not in output, output


def test_the_doctor_on_two_subnets():
    """With a router a job can run, which a warning tells; without one it says what is missing."""
    program = [sys.executable, "-m", "smddp_tf.doctor", "--quick", "--timeout", "3"]
    env = {"PYTHONPATH": str(HERE.parents[1])}
    with Hosts(2, apart="routed") as hosts:
        output = hosts.smddprun([1, 1], program, timeout=60, env=env)
    assert "WARNING: the hosts have no IPv4 network in common: host1 is in 10.213.37.0/24" in output
    assert "a job can run" in output, output
    with Hosts(2, apart="unrouted") as hosts:
        a, b = hosts.addresses
        tried = {"SMDDP_LAUNCH_HOSTS": f"{a}:1,{b}:1", "SMDDP_LAUNCH_PORT": "50123"}
        words = [word for name in tried for word in ("-x", name)]
        with pytest.raises(HostsError, match="exit 1") as ended:
            hosts.mpirun([1, 1], program, timeout=60, env={**env, **tried}, options=words)
    said = str(ended.value)
    pair = rf"({a} and {b}|{b} and {a})"  # as the rank that says so first sees it
    wanted = rf"{pair} cannot connect to each other \(port 50123: Network is unreachable\)"
    assert re.search(f"ERROR: {wanted}", said), said
    assert re.search(f"a route between the networks of {pair}", said), said


def test_hosts_leave_nothing():
    """Processes and devices of a host end with it, also after a program that fails or hangs."""
    with Hosts(2) as hosts:
        pids = hosts.pids()
        with pytest.raises(HostsError, match="exit"):
            hosts.mpirun([1, 1], ["sh", "-c", "exit 3"], timeout=30)
        with pytest.raises(HostsError, match="did not end within 3 s"):
            hosts.mpirun([1, 1], ["sleep", "61.5"], timeout=3)
    assert not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids)
    left = subprocess.run(["pgrep", "-f", "^sleep 61.5"], capture_output=True, check=False)
    assert left.stdout == b""
