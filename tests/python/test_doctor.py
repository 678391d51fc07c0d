"""The doctor's checks, each with facts in which something is wrong."""

import json
import subprocess
import sys

import pytest

from smddp_tf.doctor import __main__ as command_line
from smddp_tf.doctor import links, machine, mpi_tmpdir, software, text
from smddp_tf.doctor.findings import ERROR, NOTE, WARNING, Finding, failing, merged

ETH0 = {"name": "eth0", "address": "10.0.0.1", "mask": "255.255.255.0", "state": "up"}
LO = {"name": "lo", "address": "127.0.0.1", "mask": "255.0.0.0", "state": "unknown"}
SOUND = {
    "host": "a",
    "pid": 1,
    "user": 0,
    "boot": "b1",
    "process_namespace": "pid:[1]",
    "network_namespace": "net:[1]",
    "cores": 8,
    "usable_cores": [0, 1, 2, 3, 4, 5, 6, 7],
    "sockets": 1,
    "may_bind": True,
    "cpu_quota": 0.0,
    "group_cores": 8,
    "gpus": False,
    "shm_bytes": 1 << 30,
    "shm_free_bytes": 1 << 30,
    "interfaces": [LO, ETH0],
    "fabric": "",
    "messages": "",
    "emulated_nodes": "",
    "session_folder": "/tmp",
    "session_file_system": "ext4",
    "node": 0,
    "local_rank": 0,
    "reads_peers": "",
    "session_seen": [0],
}
OF_JOB = {"node", "local_rank", "reads_peers", "session_seen"}


def test_this_machine():
    """Its facts are of the kinds that the checks read, and JSON takes them."""
    found = machine.facts({"SMDDP_NODES": "2"})
    assert set(found) | OF_JOB == set(SOUND)
    assert {k: type(v) for k, v in found.items()}.items() <= {
        k: type(v) for k, v in SOUND.items()
    }.items()
    assert json.loads(json.dumps(found)) == found
    assert found["emulated_nodes"] == "2"


@pytest.mark.parametrize(
    ("change", "ranks", "level", "said"),
    [
        ({}, 8, None, ""),
        ({"usable_cores": [3]}, 2, WARNING, "bound to one of 8 cores"),
        (
            {"usable_cores": [3], "group_cores": 1},
            2,
            WARNING,
            "the container, or control group, has",
        ),
        ({"usable_cores": [0], "cores": 1, "group_cores": 1}, 1, None, ""),
        ({}, 9, NOTE, "9 ranks share 8 cores"),
        ({"cpu_quota": 2.5}, 1, WARNING, "a quota of 2.5 CPUs, while TensorFlow sees 8 cores"),
        ({"cpu_quota": 8.0}, 1, None, ""),
        ({"sockets": 2}, 8, NOTE, "may run on any of 2 sockets"),
        ({"sockets": 2}, 3, None, ""),
        ({"sockets": 2}, 1, None, ""),
        ({"shm_bytes": 0, "shm_free_bytes": 0}, 1, WARNING, "no /dev/shm"),
        ({"shm_free_bytes": 15 << 20}, 4, WARNING, "/dev/shm has 15 of 1024 MiB free"),
        ({"shm_free_bytes": 62 << 20}, 4, None, ""),
        ({"shm_free_bytes": 62 << 20, "gpus": True}, 1, None, ""),
        ({"shm_free_bytes": 62 << 20, "gpus": True}, 4, WARNING, "too little for NCCL of 4 ranks"),
    ],
)
def test_machines(change, ranks, level, said):
    """Each finding says what is so, and what to do."""
    findings = machine.check({**SOUND, **change}, ranks)
    assert [finding.level for finding in findings] == ([level] if level else [])
    for finding in findings:
        assert said in finding.what
        assert finding.remedy


def test_no_folder_for_temporary_files(tmp_path):
    """As in a container whose root is read-only."""
    assert machine.check_temporary({"TMPDIR": str(tmp_path)}) == []
    (finding,) = machine.check_temporary({"TMPDIR": str(tmp_path / "none"), "TMP": str(tmp_path)})
    assert f"no file can be made in {tmp_path}/none" in finding.what
    assert "TMPDIR" in finding.remedy


@pytest.mark.parametrize(
    ("change", "way", "why"),
    [
        ({}, "shared memory, large copies straight from the peer", ""),
        ({"reads_peers": "no right"}, "shared memory", "large copies take two steps: no right"),
        (
            {"node": 1, "boot": "b2"},
            "MPI",
            "on different machines; neither InfiniBand nor EFA on a",
        ),
        ({"node": 1, "process_namespace": "x"}, "MPI", "one machine, but two containers"),
        ({"node": 1, "user": 7}, "MPI", "one machine, but two users"),
        ({"node": 1, "emulated_nodes": "2"}, "MPI", "SMDDP_NODES=2 emulates nodes"),
        ({"node": 1}, "MPI", "cannot open each other's memory"),
    ],
)
def test_transports(change, way, why):
    """Of two ranks, and why it is not a faster one."""
    other = {**SOUND, **change}
    for pair in ((SOUND, other), (other, SOUND)):
        if "emulated_nodes" in change:  # all ranks have that
            pair = ({**SOUND, "emulated_nodes": "2"}, other)
        found_way, found_why, remedy = links.transport(*pair)
        assert found_way == way
        assert why in found_why
        could_be_faster = bool(why) and "machines" not in why
        assert bool(remedy) == could_be_faster
        expected = could_be_faster and "emulates" not in why
        assert len(links.check_transports([*pair, pair[1]])) == expected


def test_a_fast_network():
    """Is used, unless MPI is kept from it, or one of the machines lacks it."""
    one = {**SOUND, "fabric": "infiniband/efa_0"}
    other = {**one, "host": "b", "boot": "b2", "node": 1}
    assert links.transport(one, other) == ("MPI", "on different machines", "")
    way, why, remedy = links.transport(one, {**other, "messages": "ob1"})
    assert (way, remedy) == ("MPI", "leave out --tcp and --mca pml ob1")
    assert why == "on different machines; OMPI_MCA_pml=ob1 keeps MPI from infiniband/efa_0"
    way, why, remedy = links.transport(one, {**other, "fabric": ""})
    assert why == "on different machines; neither InfiniBand nor EFA on b"


def test_ranks_that_cannot_be_bound():
    """The remedy is the right that the container lacks."""
    (finding,) = machine.check({**SOUND, "sockets": 2, "may_bind": False}, 8)
    assert "--cap-add SYS_NICE" in finding.remedy


def host(name, *interfaces):
    """A host's facts, with (name, address) of its interfaces."""
    wired = [{**ETH0, "name": one, "address": address} for one, address in interfaces]
    return {**SOUND, "host": name, "interfaces": [LO, *wired]}


def test_networks():
    """Two subnets, and an address that every host has."""
    a, b = host("a", ("eth0", "10.0.0.1")), host("b", ("ens1", "10.0.0.2"))
    assert links.check_networks([a, b]) == []
    assert links.check_networks([a]) == []
    (finding,) = links.check_networks([a, host("b", ("eth0", "10.0.1.2"))])
    assert "a is in 10.0.0.0/24; b is in 10.0.1.0/24" in finding.what
    with_docker = [
        host("a", ("eth0", "10.0.0.1"), ("docker0", "172.17.0.1")),
        host("b", ("eth0", "10.0.0.2"), ("docker0", "172.17.0.1")),
    ]
    (finding,) = links.check_networks(with_docker)
    assert finding.what == "docker0 has the address 172.17.0.1 on 2 hosts"
    assert "--nic" in finding.remedy


def test_a_shared_session_folder():
    """By what ranks of other hosts or containers see; else by the file system's type."""
    own = {**SOUND, "host": "b", "boot": "b2", "session_seen": [1]}
    assert mpi_tmpdir.check([SOUND, own]) == []
    assert mpi_tmpdir.check([SOUND, {**SOUND, "session_seen": [0, 1]}]) == []  # of one host
    for apart in ({"boot": "b2"}, {"process_namespace": "pid:[2]"}):
        (finding,) = mpi_tmpdir.check(
            [SOUND, {**own, "boot": "b1", **apart, "session_seen": [0, 1]}]
        )
        assert finding.level == WARNING
        assert finding.what.startswith("b and a share /tmp, where Open MPI 5")
        assert "TMPDIR" in finding.remedy
        assert "--prtemca prte_tmpdir_base" in finding.remedy
    for kind in ("nfs4", "lustre", "fuse.sshfs"):
        (finding,) = mpi_tmpdir.check([{**SOUND, "session_file_system": kind}])
        assert finding.what.startswith(f"/tmp is on {kind}, which other hosts may have too")
    assert mpi_tmpdir.check([{**SOUND, "session_folder": "", "session_file_system": "nfs"}]) == []


def test_where_the_session_folder_is(tmp_path):
    """Of Open MPI 5 only; version 4 has the host's name in it, and MPICH none."""
    assert mpi_tmpdir.folder({"PMIX_SERVER_TMPDIR": "/scratch/ompi.31823"}) == "/scratch"
    assert mpi_tmpdir.folder({"PMIX_SERVER_TMPDIR": "/tmp/prted.7"}) == "/tmp"
    assert mpi_tmpdir.folder({"PMIX_SERVER_TMPDIR": "/tmp/ompi.host.0/pid.31823"}) == ""
    assert mpi_tmpdir.folder({}) == ""
    mounts = "/dev/a / ext4 rw 0 0\nb:/c /tmp nfs4 rw 0 0\nd /tmp/a\\040b tmpfs rw 0 0\n"
    found = [
        mpi_tmpdir.file_system(path, mounts) for path in ("/tmp/x", "/tmpfs", "/tmp/a b/x", "/")
    ]
    assert found == ["nfs4", "ext4", "tmpfs", "ext4"]
    other = tmp_path / "of another rank"
    other.touch()
    gathered = []

    def gather(value):
        gathered.append(value)
        return [value, "of another rank", "of a third"] if len(gathered) == 1 else [value]

    assert mpi_tmpdir.seen(str(tmp_path), gather) == [0, 1]
    assert list(tmp_path.iterdir()) == [other]
    assert mpi_tmpdir.seen("", lambda value: [value]) == []


def test_which_pairs_are_measured():
    """All, or one in each node and one for each two nodes."""
    assert links.pairs_to_measure([0]) == []
    assert links.pairs_to_measure([0, 0, 1]) == [(0, 1), (0, 2), (1, 2)]
    assert links.pairs_to_measure([0, 0, 0, 1, 1, 1]) == [(0, 1), (0, 3), (3, 4)]
    assert len(links.pairs_to_measure(list(range(64)))) == 12


@pytest.mark.parametrize(
    ("version", "torch", "level"),
    [
        ("2.15.1", "", None),
        ("2.21.0", "2.1.0", None),
        ("2.14.0", "", WARNING),
        ("2.22.0rc1", "", WARNING),
        ("", "2.13.0+cpu", None),
        ("", "2.12.1", WARNING),
        ("", "", ERROR),
    ],
)
def test_versions(version, torch, level):
    """A job needs TensorFlow or PyTorch, of a version that is tested."""
    findings = software.check_versions({"tensorflow": version, "torch": torch})
    assert [finding.level for finding in findings] == ([level] if level else [])
    assert software.versions()["python"] == sys.version.split()[0]


@pytest.mark.parametrize("framework", ["TensorFlow", "PyTorch"])
def test_frameworks_that_cannot_be_imported(framework, tmp_path):
    """The last line of the error, or the signal that ended the process."""
    python = tmp_path / "python"
    for script, said in (
        ("echo lines >&2; echo ImportError: gone >&2; exit 1", "ImportError: gone"),
        (r"printf 'ImportError: \374\n' >&2; exit 1", "ImportError: \ufffd"),
        ("kill -ILL $$", "signal 4 ended the process"),
    ):
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        (finding,) = software.try_framework(framework, str(python))
        assert finding.level == ERROR
        assert framework in finding.what
        assert said in finding.what


def test_findings_of_ranks():
    """Equal ones become one that names the ranks; errors come first."""
    slow, bad = Finding(WARNING, "slow"), Finding(ERROR, "bad", "do this")
    assert merged([(0, [slow]), (1, [slow])]) == [slow]
    assert merged([(0, [slow, slow])]) == [slow]
    found = merged([(0, [slow]), (1, [slow, bad]), (2, [slow]), (3, [])])
    assert found == [
        Finding(ERROR, "rank 1: bad", "do this"),
        Finding(WARNING, "ranks 0 to 2: slow"),
    ]
    assert failing(found)
    assert not failing(found[1:])


def doctor(*words, **environment):
    """The doctor as a process that finds no mpirun unless PATH has one."""
    return subprocess.run(
        [sys.executable, "-m", "smddp_tf.doctor", "--quick", *words],
        env={"PATH": "/nonexistent", "PYTHONPATH": ":".join(sys.path), **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_without_an_mpirun_a_job_would_fail(tmp_path):
    """The exit code says so, in text and in JSON."""
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\necho 'Another MPI 1.0'\n")
    mpirun.chmod(0o755)
    result = doctor(PATH=str(tmp_path))
    assert result.returncode == 1
    assert "ERROR: " in result.stdout
    assert "'Another MPI 1.0', which is none of Open MPI 4 or later, MPICH" in result.stdout
    assert result.stdout.endswith("a job would fail\n")
    report = json.loads(doctor("--json", PATH=str(tmp_path)).stdout)
    assert not report["ok"]
    assert report["job"] is None


@pytest.mark.parametrize(
    ("script", "said", "remedy"),
    [
        ("exit 1", "mpirun --version ends with exit code 1", "it says:"),
        (
            r'[ "$1" = --version ] && echo "(Open MPI) 5.0" || { printf "\374; b"; exit 7; }',
            "a job of 2 ranks failed with exit code 7:\n\ufffd; b",
            "run it yourself: ",
        ),
    ],
)
def test_an_mpirun_that_fails(tmp_path, script, said, remedy):
    """What it says is shown, in any encoding."""
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(f"#!/bin/sh\n{script}\n")
    mpirun.chmod(0o755)
    report = json.loads(doctor("--json", PATH=f"{tmp_path}:/usr/bin:/bin").stdout)
    (found,) = [one for one in report["findings"] if one["level"] == ERROR]
    assert found["what"].endswith(said)
    assert found["remedy"].startswith(remedy)


def test_text():
    """A line for each rank and pair."""
    speed = {"latency_us": 12.5, "gigabytes_per_second": 3.25}
    pair = {"ranks": [0, 1], "transport": "MPI", "why_not_faster": "on different machines"}
    job = {
        "size": 2,
        "ranks": [SOUND, {**SOUND, "host": "b", "node": 1, "usable_cores": [0, 1, 2, 5]}],
        "pairs": [{**pair, **speed}],
        "allreduce": speed,
        "clock_offsets_ms": [0.0, 1.5],
        "clock_exact_ms": 0.1,
    }
    report = {"ok": False, "versions": {"python": "3.12.1", "nccl": ""}, "mpi": "", "job": job}
    shown = text.lines({**report, "findings": [vars(Finding(ERROR, "bad", "do this"))]})
    assert shown == [
        "Python 3.12.1; no NCCL",
        "MPI: none",
        "a job of 2 ranks:",
        "  rank 0 on a, node 0: cores 0-7 of 8, /dev/shm 1024 MiB free, eth0 10.0.0.1",
        "  rank 1 on b, node 1: cores 0-2,5 of 8, /dev/shm 1024 MiB free, eth0 10.0.0.1",
        "  ranks 0 and 1: MPI (on different machines); 12.5 us, 3.25 GB/s",
        "  allreduce of all ranks: 12.5 us, 3.25 GB/s",
        "  clocks differ by 1.500 ms (to 0.1 ms)",
        "ERROR: bad",
        "  -> do this",
        "a job would fail",
    ]


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_ranks_that_are_jobs_of_their_own(name):
    """The variable is for notebooks; left in a profile, it makes every rank train alone."""
    job, alone = {"size": 1}, {"SMDDP_SINGLE_PROCESS": "1"}
    (finding,) = command_line._alone_by_request(job, {**alone, name: "3"})
    assert finding.level == ERROR and "each of the 3 processes is a job of its own" in finding.what
    assert command_line._alone_by_request(job, {**alone, name: "1"}) == []
    assert command_line._alone_by_request({"size": 3}, {**alone, name: "3"}) == []
    assert command_line._alone_by_request(job, {name: "3"}) == []
