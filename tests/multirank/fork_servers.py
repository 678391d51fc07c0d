"""The fork servers of a test session: two for each Python and what it reads while it starts."""

import atexit
import pathlib
import subprocess
import tempfile
import threading

HERE = pathlib.Path(__file__).resolve().parent
START_SECONDS = 120
# Variables that Python, TensorFlow or their libraries read before a script's first line.
READ_AT_START = ("LD_", "OMP_", "PYTHON", "TF_CPP_", "TF_USE_")


class ForkServer:
    """One process of fork_server.py."""

    def __init__(self, python, env: dict):
        self._folder = tempfile.TemporaryDirectory(prefix="fork", ignore_cleanup_errors=True)
        self.path = str(pathlib.Path(self._folder.name) / "socket")
        self._process = subprocess.Popen(
            [python, HERE / "fork_server.py", self.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
            start_new_session=True,
        )

    def wait(self) -> None:
        """Until it serves."""
        limit = threading.Timer(START_SECONDS, self._process.kill)
        limit.start()
        line = self._process.stdout.readline()
        limit.cancel()
        if line != "ready\n":
            raise RuntimeError(f"the fork server did not start in {START_SECONDS} s: {line!r}")

    def is_alive(self) -> bool:
        """Whether it can fork."""
        return self._process.poll() is None

    def end(self) -> None:
        """Ends it and what it forked."""
        self._process.stdin.close()
        self._process.wait(10)
        self._folder.cleanup()


class ForkServers:
    """Those that run. They end with this process."""

    def __init__(self):
        self._pairs: dict = {}
        atexit.register(self.end)

    def client(self, python, env: dict) -> list:
        """The words that start a script in place of `python`, in this environment."""
        read = sorted((k, v) for k, v in env.items() if k.startswith(READ_AT_START))
        key = (str(python), tuple(read))
        pair = self._pairs.get(key)
        if pair is None or not all(server.is_alive() for server in pair):
            pair = [ForkServer(python, env) for _ in range(2)]
            for server in pair:
                server.wait()
            self._pairs[key] = pair
        paths = ",".join(server.path for server in self._pairs[key])
        return [python, "-IS", HERE / "fork_client.py", paths]

    def end(self) -> None:
        """Ends all."""
        while self._pairs:
            for server in self._pairs.popitem()[1]:
                server.end()
