"""What a rank of run() does: it takes the function, calls it and leaves the result."""

from __future__ import annotations

import io
import os
import pickle
import platform
import socket
import sys
import traceback
from collections.abc import MutableMapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

from smddp_tf.launch import hosts
from smddp_tf.launch.function import held, pickling, results

_CONNECT_SECONDS = 10  # for each address of the process that called run()


class _FailedError(Exception):
    """The rank has no result for a reason of ours: its text, with the exception as the cause."""


def _wait_for_word(connection: Connection) -> None:
    if not connection.poll(_CONNECT_SECONDS):
        raise TimeoutError("it says nothing")


def _connection(address: str, key: bytes) -> Connection:
    """The connection to run() at an address; raises if something else is there."""
    host, _, port = address.rpartition(":")
    connected = socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.settimeout(None)
    connection = Connection(connected.detach())
    try:
        _wait_for_word(connection)
        answer_challenge(connection, key)
        deliver_challenge(connection, key)
    except BaseException:
        connection.close()
        raise
    return connection


def connect(rank: int, environment: MutableMapping[str, str]) -> Connection:
    """Connects to run(), at the first of its addresses that answers.

    Ends the process if there is none.
    """
    addresses = environment.pop(results.ADDRESSES, "")
    key = bytes.fromhex(environment.pop(results.KEY, ""))
    said = []
    for address in filter(None, addresses.split(",")):
        try:
            connection = _connection(address, key)
        except (OSError, EOFError, AuthenticationError, AssertionError) as error:
            said.append(f"{address}: {error or type(error).__name__}")
        else:
            connection.send(rank)
            return connection
    return sys.exit(
        f"rank {rank} on {socket.gethostname()} cannot reach the process that called run() "
        f"({'; '.join(said) or 'it was not started by run()'}). Ranks connect to it by TCP: open "
        "its firewall for this host, or name the network between them by network_interface="
    )


def _loaded(about: tuple, call: bytes) -> tuple:
    """The function, its positional and its keyword arguments."""
    version, path, sources = about
    own = platform.python_version_tuple()[:2]
    if own != version:
        raise _FailedError(
            f"run() was called by Python {'.'.join(version)} and this rank is Python "
            f"{'.'.join(own)} ({sys.executable}); a function travels between equal versions only"
        )
    # What the caller can import a rank can too; it finds modules in the same order.
    sys.path[:] = [*path, *(folder for folder in sys.path if folder not in path)]
    pickling.keep_sources(sources)
    try:
        return pickle.loads(call)
    except BaseException as error:
        raise _FailedError(
            "the function or its arguments cannot be loaded here: "
            f"{type(error).__name__}: {error}. Modules that they name must be installed, or in "
            "the folders of sys.path, on each host; what __main__ defines needs cloudpickle"
        ) from error


def _returned(about: tuple, call: bytes) -> bytes:
    """The pickle of what the function returns. sys.exit(0) returns None, as a script succeeds."""
    function, args, kwargs = _loaded(about, call)
    try:
        value = function(*args, **kwargs)
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
        value = None
    try:
        return pickling.dumps_result(value)
    except pickle.PicklingError as error:
        raise _FailedError(str(error)) from error


def _failure(error: BaseException) -> tuple:
    """(text, pickle) of an exception; the text begins where the function does."""
    if isinstance(error, _FailedError):
        text, error = str(error), error.__cause__ or error
    elif isinstance(error, SystemExit):
        text = f"it called sys.exit({error.code!r})"
    else:
        below = error.__traceback__
        for _ in range(2):  # main() and _returned()
            below = below.tb_next if below is not None and below.tb_next else below
        text = "".join(traceback.format_exception(type(error), error, below)).rstrip()
    try:
        return text, pickling.dumps(error)
    except Exception as problem:  # of any class: those of the exception's attributes pickle
        why = f"{type(problem).__name__}: {problem}"
        return f"{text}\n(not the cause here, since it cannot be pickled: {why})", b""


def _leave(connection: Connection, text: str | None, pickled: bytes) -> None:
    """Leaves the result (text None) or the failure with run(), and waits until it is there."""
    try:
        connection.send(text)
        connection.send_bytes(pickled)
        connection.recv_bytes()
    except (OSError, EOFError) as error:
        sys.exit(f"the process that called run() has gone ({error or 'end of file'}){text or ''}")


def _quiet(kind: type, value: BaseException, below: Any) -> None:
    """An excepthook: run() shows the exception."""


def main() -> None:
    """Runs the rank."""
    held.no_input()  # what mpirun hands on may never end
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # whole lines, as they come
    environment = os.environ
    rank = next(int(environment[name]) for name in hosts.OF_RANKS if environment.get(name))
    connection = connect(rank, environment)
    about, call = connection.recv(), connection.recv_bytes()
    sys.excepthook = _quiet
    try:
        pickled = _returned(about, call)
    except BaseException as error:
        _leave(connection, *_failure(error))
        if isinstance(error, SystemExit):
            # Python does not call it for this one, and shutdown() would wait for the other ranks.
            sys.excepthook(type(error), error, None)
        raise  # as of a script that fails: the launcher ends the others
    _leave(connection, None, pickled)


if __name__ == "__main__":
    main()
