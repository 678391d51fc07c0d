"""Forks processes that have imported TensorFlow or PyTorch, which takes seconds of a core else.

    fork_server.py SOCKET PID MODULES    ends when that process does; modules with commas

mpirun starts fork_client.py, which hands its environment, folder, cores and output to a process
that is forked here, and becomes that process in all that mpirun can see: it passes signals on, and
ends as it ended. Neither has threads until it is used, so that a fork has nothing to lose.

Rank 0 of a job ends as Python does. The others, unless they raise or call sys.exit(), skip the
last part of that: to take thousands of imported modules apart costs 0.2 s of a core, most of it
for pages that the fork had shared.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import types

# Keras imports them if they are there, which takes a third of TensorFlow's whole import.
OPTIONAL = ("sklearn", "matplotlib")


def preload(modules) -> None:
    """Imports what almost every script does."""
    sys.modules.update(dict.fromkeys(OPTIONAL))
    for name in modules:
        importlib.import_module(name)
    if "tensorflow" in modules:
        assert sys.modules["tensorflow"].keras.Sequential  # Keras is imported when it is used
    for name in OPTIONAL:
        del sys.modules[name]
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"{modules} started threads, which no fork would have: {threads}"
    gc.collect()
    gc.freeze()  # or the first collection of each child copies every page


def receive(connection) -> tuple:
    """A client's standard files, and its state; EOFError if it ended before it had sent them."""
    data, files, _, _ = socket.recv_fds(connection, 1 << 16, 3)
    while not data.endswith(b"\n"):
        more = connection.recv(1 << 16)
        if not more:
            raise EOFError
        data += more
    return files, json.loads(data)


def become(files, state) -> None:
    """Makes this new process what the client was started as."""
    os.setpgid(0, 0)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(state["environment"])
    os.chdir(state["folder"])
    os.sched_setaffinity(0, state["cores"])
    sys.modules["numpy"].random.seed()  # Python's own generator is seeded at each fork


def run(words) -> None:
    """Runs `SCRIPT ARGUMENTS` or `-m MODULE ARGUMENTS` as Python would."""
    if words[0] == "-m":
        sys.argv, sys.path[0] = words[1:], os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.argv, sys.path[0] = words, os.path.dirname(os.path.abspath(words[0]))
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = words[0]
    with open(words[0], "rb") as file:
        code = compile(file.read(), words[0], "exec")
    exec(code, main.__dict__)


def end() -> None:
    """Ends this process; Python has no names for what it does first when a script has ended."""
    threading._shutdown()  # waits for threads that are not daemons
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class Server:
    """Clients, and the processes forked for them."""

    def __init__(self, path: str, session: int):
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(64)
        self._events = selectors.DefaultSelector()
        self._events.register(self._listener, selectors.EVENT_READ, self._accept)
        self._session = os.pidfd_open(session)
        self._events.register(self._session, selectors.EVENT_READ, self._close)
        self._forked: dict = {}  # pidfd -> (process id, connection)
        self._open = True

    def serve(self):
        """Returns the words to run in each forked process, and None in the server at its end."""
        while self._open:
            for key, _ in self._events.select():
                words = key.data(key.fileobj)
                if words:
                    return words
        for process in self._forked:
            signal.pidfd_send_signal(process, signal.SIGKILL)
        return None

    def _close(self, _) -> None:
        self._open = False

    def _accept(self, listener):
        connection, _ = listener.accept()
        try:
            files, state = receive(connection)
        except (EOFError, ConnectionResetError):
            connection.close()
            return None  # mpirun ended it while it started
        child = os.fork()
        if child == 0:
            self._leave(connection)
            become(files, state)
            return state["words"]
        for file in files:
            os.close(file)
        process = os.pidfd_open(child)
        self._forked[process] = (child, connection)
        self._events.register(process, selectors.EVENT_READ, self._ended)
        self._events.register(
            connection, selectors.EVENT_READ, lambda _: self._signalled(process, connection)
        )
        return None

    def _leave(self, connection) -> None:
        """Closes what is the server's."""
        self._events.close()
        self._listener.close()
        os.close(self._session)
        connection.close()
        for process, (_, other) in self._forked.items():
            os.close(process)
            other.close()

    def _signalled(self, process: int, connection) -> None:
        """Passes on a signal that the client got; a client that is gone was killed."""
        if self._forked.get(process, (0, None))[1] is not connection:
            return  # it ended at the same time, and the number may be another's by now
        try:
            number = connection.recv(1)
        except ConnectionResetError:
            number = b""
        signal.pidfd_send_signal(process, number[0] if number else signal.SIGKILL)
        if not number:
            self._events.unregister(connection)

    def _ended(self, process: int) -> None:
        """Tells the client how its process ended."""
        child, connection = self._forked.pop(process)
        _, status = os.waitpid(child, 0)
        self._events.unregister(process)
        os.close(process)
        if connection in self._events.get_map():
            self._events.unregister(connection)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # mpirun killed it
                connection.sendall(status.to_bytes(4, "little"))
        connection.close()


def main() -> None:
    """Serves; a forked process leaves that here and runs what it was started for."""
    preload(sys.argv[3].split(","))
    server = Server(sys.argv[1], int(sys.argv[2]))
    print("ready", flush=True)
    words = server.serve()
    del server
    if words:
        run(words)
        rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK") or "0"
        # mpi4py ends MPI at the very end of Python.
        if rank != "0" and "mpi4py" not in sys.modules:
            end()


main()
