"""What mpirun starts in place of Python: it has a process forked that has TensorFlow already.

    python -IS fork_client.py SOCKET,SOCKET SCRIPT ARGUMENTS

Ranks take turns at the servers, so that neighbours differ in all that Python chooses at random when
it starts, such as the order of sets. See fork_server.py.
"""

import json
import os
import signal
import socket
import sys

# mpirun continues a process before it ends it: one that is stopped then hears the second signal.
PASSED_ON = (
    signal.SIGCONT,
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


def main() -> None:
    """Starts it, passes signals on, and ends as it does."""
    paths, *words = sys.argv[1:]
    paths = paths.split(",")
    rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK") or "0"
    server = socket.socket(socket.AF_UNIX)
    server.connect(paths[int(rank) % len(paths)])
    state = {
        "words": words,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "cores": sorted(os.sched_getaffinity(0)),
    }
    socket.send_fds(server, [json.dumps(state).encode() + b"\n"], [0, 1, 2])
    for number in PASSED_ON:  # a signal before ends this client, and with it what it asked for
        signal.signal(number, lambda number, _: server.send(bytes([number])))
    answer = server.recv(4)
    if not answer:
        sys.exit("the fork server ended before the process that it forked")
    status = int.from_bytes(answer, "little")
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


main()
