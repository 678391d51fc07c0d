"""The fork servers of a test session: two for each Python and what it reads while it starts."""

import pathlib
import socket
import subprocess
import threading

import shared

HERE = pathlib.Path(__file__).resolve().parent
START_SECONDS = 600
# Variables that Python, TensorFlow, PyTorch or their libraries read before a script's first line.
READ_AT_START = ("LD_", "OMP_", "PYTHON", "TF_CPP_", "TF_USE_", "TORCH_")
_started = []  # by this process; they end with the session


def client(python, env: dict, modules="tensorflow") -> list:
    """The words that start a script in place of `python`, in this environment.

    modules: what has been imported by then, with commas.
    """
    read = sorted((k, v) for k, v in env.items() if k.startswith(READ_AT_START))
    with shared.locked(shared.name_of("fork", str(python), read, modules)) as path:
        paths = [f"{path}-{number}" for number in range(2)]
        starting = [_start(path, python, env, modules) for path in paths if not _serves(path)]
        for server in starting:
            _wait(server)
    return [python, "-IS", HERE / "fork_client.py", ",".join(paths)]


def _serves(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True


def _start(path: str, python, env: dict, modules: str) -> subprocess.Popen:
    pathlib.Path(path).unlink(missing_ok=True)  # left by one that was killed
    _started.append(
        subprocess.Popen(
            [python, HERE / "fork_server.py", path, str(shared.session()[0]), modules],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
            start_new_session=True,
        )
    )
    return _started[-1]


def _wait(server) -> None:
    """Until it serves."""
    limit = threading.Timer(START_SECONDS, server.kill)
    limit.start()
    line = server.stdout.readline()
    limit.cancel()
    if line != "ready\n":
        raise RuntimeError(f"the fork server did not start in {START_SECONDS} s: {line!r}")
