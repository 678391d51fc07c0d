"""run() from processes of their own: what they have loaded, and how they end."""

import contextlib
import doctest
import inspect
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import launcher
import pytest

import smddp_tf
from smddp_tf.launch.function import rank, results

SCRIPT = pathlib.Path(__file__).with_name("calls_run.py")
WITH_MPIRUN = {"PATH": f"{launcher.BIN}:{os.environ['PATH']}"}


def call(*words, timeout=100) -> tuple:
    """(exit code, output) of the script."""
    code, output, late = launcher.run_command(
        [sys.executable, SCRIPT, *words], timeout=timeout, env=WITH_MPIRUN
    )
    assert not late, output
    return code, output


def test_tensorflow_is_loaded():
    """The process is a job of one rank already; functions and classes are of __main__."""
    code, output = call("tensorflow", timeout=150)
    assert code == 0, output
    assert "right: 70" in output and "right: 30" in output


def test_a_traceback_has_its_lines():
    """Of the script, whose file the rank does not import."""
    code, output = call("fail")
    assert code == 1
    own = output.rindex("rank 0 failed: Traceback")
    assert 'hvd.run(lambda: {}["missing"], np=1)' in output[own:], output
    assert "KeyError: 'missing'" in output[own:]


def test_without_cloudpickle():
    """A function with a module travels by its name; one of __main__ says what to do."""
    code, output = call("pickle")
    assert code == 1
    assert "[0, None]" in output, output
    assert "ranks cannot import total by its name, since it is defined in __main__" in output
    assert "`pip install cloudpickle`" in output


def test_a_script_for_horovod():
    """Its ranks have Horovod's names too; one rank unless told."""
    script = SCRIPT.with_name("calls_horovod_run.py")
    code, output, late = launcher.run_command(
        [sys.executable, "-m", "smddp_tf.compat", script], timeout=150, env=WITH_MPIRUN
    )
    assert (code, late) == (0, False), output
    assert "[(0, 2), (5, 2)]" in output and "one rank: [7]" in output, output


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_an_end_from_outside(how, tmp_path):
    """Within a second no rank runs; soon nothing is left at all, and nobody hangs."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), "wait", str(tmp_path)],
        env={**launcher.environment(WITH_MPIRUN), "TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # Of what a shell runs in the background it is ignored, and so of these tests perhaps.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("pid*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        ranks = [int(path.name[3:]) for path in tmp_path.glob("pid*")]
        assert len(ranks) == 2
        begin = time.monotonic()
        process.send_signal(signal.Signals[how])
        while any(map(launcher.runs, ranks)) and time.monotonic() < begin + 20:
            time.sleep(0.01)
        assert time.monotonic() - begin < 1
        _, said = process.communicate(timeout=20)
    finally:
        process.kill()
    deadline = time.monotonic() + 20
    while launcher.of_environment("TMPDIR", str(temporary)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert launcher.of_environment("TMPDIR", str(temporary)) == []
    assert list(temporary.iterdir()) == []
    assert (tmp_path / "interrupted").exists() == (how == "SIGINT"), said


def test_whoever_has_no_key_gets_nothing():
    """Silent or noisy strangers on the port disturb nobody; ranks say whom they cannot reach."""
    served = results.Results([results.LOOPBACK], ("about",), b"call")
    try:
        addresses = served.variables()[results.ADDRESSES]
        at = (results.LOOPBACK, int(addresses.rpartition(":")[2]))
        with socket.create_connection(at), socket.create_connection(at, timeout=10) as noisy:
            noisy.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
            heard = b""
            with contextlib.suppress(ConnectionError):  # it is thrown out
                while piece := noisy.recv(4096):
                    heard += piece
            assert b"call" not in heard
            with pytest.raises(SystemExit, match="cannot reach the process that called run"):
                rank.connect(0, {**served.variables(), results.KEY: "00"})
            # The second address is the right one: at the first nobody listens.
            variables = {**served.variables(), results.ADDRESSES: f"127.0.0.1:1,{addresses}"}
            with rank.connect(3, variables) as connection:
                assert connection.recv() == ("about",)
                assert connection.recv_bytes() == b"call"
    finally:
        served.close()
    assert list(served.failures) == [3]  # it has said nothing
    with pytest.raises(SystemExit, match="Connection refused"):
        rank.connect(0, served.variables())


def test_the_example(monkeypatch):
    """Of the docstring, as a user's process runs it."""
    for name, value in launcher.environment(WITH_MPIRUN).items():
        monkeypatch.setenv(name, value)
    text = inspect.getdoc(smddp_tf.run)
    test = doctest.DocTestParser().get_doctest(text, {"hvd": smddp_tf}, "run", None, None)
    said: list = []
    tried = doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    assert (tried.failed, tried.attempted) == (0, 2), "".join(said)
