"""run() calls a function on ranks that it starts, and returns or raises what they do."""

import os
import pickle
import re
import threading
import time

import functions
import launcher
import numpy as np
import pytest

import smddp_tf as hvd
from smddp_tf.errors import RankFailedError
from smddp_tf.launch import LaunchError


@pytest.fixture(autouse=True)
def _as_users_do(monkeypatch):
    """The environment of a user's process, and the mpirun beside this Python."""
    for name, value in launcher.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{launcher.BIN}:{os.environ['PATH']}")


@pytest.fixture
def nothing_behind(tmp_path, monkeypatch):
    """After the test no process that it started runs, and no file is left."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    threads = set(threading.enumerate())
    open_files = len(os.listdir("/proc/self/fd"))
    yield
    assert launcher.of_environment("TMPDIR", str(folder)) == []
    assert list(folder.iterdir()) == []
    assert set(threading.enumerate()) <= threads
    assert len(os.listdir("/proc/self/fd")) == open_files


def test_results_come_in_order(nothing_behind, capsys):
    """Of more ranks than cores, with the caller's folder and path; lines have their rank."""
    results = hvd.run(functions.place, args=["a"], kwargs={"last": {1: "b"}}, num_proc=3)
    for rank, (first, own, size, last, folder, path) in enumerate(results):
        assert (first, own, size, last) == ("a", rank, 3, {1: "b"})
        assert folder == os.getcwd()
        assert os.path.dirname(functions.__file__) in path
    said = capsys.readouterr()
    for rank in range(3):
        assert re.search(rf"^\[.*\b{rank}\].*here is {rank}$", said.out, re.M), said.out
        assert re.search(rf"^\[.*\b{rank}\].*an error of {rank}$", said.err, re.M), said.err


def test_large_results_in_a_thread(nothing_behind):
    """300 MB from each rank, and from two jobs at once; the main thread does something else."""
    elements, results = 300_000_000 // 8, {}

    def call(number):
        results[number] = hvd.run(functions.large, (elements if number == 0 else 3,), np=2)

    threads = [threading.Thread(target=call, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for number, length in ((0, elements), (1, 3)):
        for rank in range(2):
            expected = np.arange(length, dtype=np.float64) * (rank + 1)
            np.testing.assert_array_equal(results[number][rank], expected)


# How rank 1 ends -> what the message says, and the cause.
FAILURES = {
    "raises": (r"rank 1 failed: Traceback [\s\S]*OwnError: the reason", functions.OwnError),
    "raises what cannot be made again": (r"StubbornError: 1 and 2", type(None)),
    "raises what cannot be pickled": (
        r"OwnError: <unlocked _thread.lock[\s\S]*cannot be pickled: TypeError: ",
        type(None),
    ),
    "is killed": (r"rank 1 ended without a result.* SIGKILL", type(None)),
    "exits with 3": (r"rank 1 failed: it called sys.exit\(3\)", SystemExit),
    "exits with a text": (r"rank 1 failed: it called sys.exit\('for a reason'\)", SystemExit),
    "leaves": (r"rank 1 ended without a result.* exit code", type(None)),
    "returns a lock": (
        r"rank 1 failed: the result, a lock, cannot be pickled",
        pickle.PicklingError,
    ),
    "returns what nobody loads": (r"the result of rank 1 cannot be loaded here", ValueError),
    "interrupts itself": (r"rank 1 failed: [\s\S]*KeyboardInterrupt", KeyboardInterrupt),
}


@pytest.mark.parametrize("how", FAILURES)
def test_a_rank_that_fails(how, nothing_behind):
    """The exception says which rank and why, and has the rank's own as its cause."""
    text, cause = FAILURES[how]
    begin = time.monotonic()
    with pytest.raises(RankFailedError, match=text) as raised:
        hvd.run(functions.fail, (how,))
    assert time.monotonic() - begin < 50  # rank 0 would wait for 60 s
    assert raised.value.rank == 1
    assert type(raised.value.__cause__) is cause
    # What is ours in the traceback is not shown.
    assert "_returned" not in str(raised.value)


def test_a_rank_that_exits_well():
    """sys.exit() is how many scripts end; the rank has returned None."""
    assert hvd.run(functions.fail, ("exits with 0",)) == [0, None]


REFUSED = [
    (dict(np=0), LaunchError, "'0' is not a whole number from 1"),
    (dict(num_proc=2.5), LaunchError, "'2.5' is not a whole number"),
    (dict(num_proc=2, np=3), LaunchError, "num_proc=2, and 3 by its older name"),
    (dict(hosts="a:2", np=4), LaunchError, "-np 4, but the hosts a:2 have 2 slots; give more"),
    (dict(hosts="a"), LaunchError, "how many ranks"),
    (dict(hosts="a:2", hostfile="b"), LaunchError, "not allowed with argument"),
    (dict(hostfile="/none"), LaunchError, "cannot be read"),
    (dict(min_np=1), LaunchError, "min_num_proc=1 is for elastic jobs"),
    (dict(reset_limit=3), LaunchError, "reset_limit=3 is for elastic jobs"),
    (dict(use_gloo=True), LaunchError, "--gloo of horovodrun has no meaning here"),
    (dict(mpi_args="'"), LaunchError, "No closing quotation"),
    (dict(mpi_args="--nonsense"), LaunchError, r"no rank has connected[\s\S]*--nonsense"),
    (dict(network_interface="none"), LaunchError, "no interface 'none' here"),
    (dict(executable="/none"), LaunchError, "/none: there is no such program"),
    (dict(executable="/bin/false"), LaunchError, r"no rank has connected \(exit code 1\)"),
    (dict(start_timeout=9), LaunchError, "--start-timeout needs Open MPI 4"),
    (dict(args=3), TypeError, "args is a tuple"),
    (dict(kwargs=[3]), TypeError, "kwargs is a dict"),
    (dict(func="work"), TypeError, "func is 'work'"),
    (dict(args=[threading.Lock()]), pickle.PicklingError, "cannot be pickled, so no rank was"),
]


@pytest.mark.parametrize(("given", "kind", "text"), REFUSED, ids=[one[2] for one in REFUSED])
def test_what_cannot_be_started(given, kind, text, nothing_behind):
    """It says what is wrong, and is not a bare end of the process."""
    with pytest.raises(kind, match=text):
        hvd.run(**{"func": functions.fail, "args": ("leaves",), **given})


def test_a_rank_cannot_start_ranks(monkeypatch):
    """Nor can a process that mpirun has started otherwise."""
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    with pytest.raises(LaunchError, match="this process is a rank of a job already"):
        hvd.run(functions.fail, ("leaves",))


def test_what_has_no_effect(nothing_behind):
    """As of smddprun: Horovod's cache, its MPI, the choice of hosts that is the default."""
    given = dict(hosts="localhost:2,127.0.0.1:1", disable_cache=True, use_mpi=True, verbose=1)
    assert hvd.run(functions.fail, ("exits with 0",), **given) == [0, None, 0]


def test_files_of_output(tmp_path):
    """output_filename is smddprun's option."""
    hvd.run(functions.place, (1,), {"last": 2}, 2, output_filename=str(tmp_path / "out"))
    written = "".join(path.read_text() for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert "here is 0" in written and "here is 1" in written
