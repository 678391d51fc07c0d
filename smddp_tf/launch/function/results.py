"""Where the ranks of run() connect to: they take the function there, and leave their results."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

ADDRESSES, KEY = "SMDDP_RUN_ADDRESSES", "SMDDP_RUN_KEY"
LOOPBACK = "127.0.0.1"
_BACKLOG = 1024  # ranks that connect at once
_LAST_SECONDS = 5  # for what has ended to be noticed


@dataclasses.dataclass(frozen=True)
class Failure:
    """How a rank failed: what it says, and its exception's pickle if that could be made.

    Both are empty for a rank that ended without a word.
    """

    text: str = ""
    exception: bytes = b""


class Results:
    """Serves the function until close(); a thread for each rank.

    Attributes:
      values: rank -> the pickle of its result.
      failures: rank -> Failure, in the order in which they came.
      seen: the ranks that have connected.
    """

    def __init__(self, addresses: Sequence[str], about: tuple, call: bytes) -> None:
        """Begins to listen.

        Args:
          addresses: of this machine, for the ranks to try.
          about: small things that ranks need to know before they load the call.
          call: the pickle of the function and its arguments.
        """
        self.values: dict[int, bytes] = {}
        self.failures: dict[int, Failure] = {}
        self.seen: set[int] = set()
        self._about, self._call = about, call
        self._key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._ranks: list[tuple[socket.socket, threading.Thread]] = []
        own = LOOPBACK if list(addresses) == [LOOPBACK] else ""
        self._listener = socket.create_server((own, 0), backlog=_BACKLOG)
        port = self._listener.getsockname()[1]
        self._addresses = ",".join(f"{address}:{port}" for address in addresses)
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def variables(self) -> dict[str, str]:
        """What ranks need in their environment to connect."""
        return {ADDRESSES: self._addresses, KEY: self._key.hex()}

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # close() ends it
            while True:
                accepted, _ = self._listener.accept()
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                thread = threading.Thread(target=self._serve, args=[accepted], daemon=True)
                self._ranks.append((accepted, thread))
                thread.start()

    def _serve(self, accepted: socket.socket) -> None:
        # The socket stays, since only its shutdown() ends a read in another thread.
        with accepted, Connection(os.dup(accepted.fileno())) as connection:
            try:
                # Whoever is silent here is waited for until close(), which disturbs nobody else.
                deliver_challenge(connection, self._key)
                answer_challenge(connection, self._key)
                rank = connection.recv()
            except (EOFError, OSError, AuthenticationError):
                return  # it was no rank, or has ended
            self._serve_rank(rank, connection)

    def _serve_rank(self, rank: int, connection: Connection) -> None:
        self.seen.add(rank)
        try:
            connection.send(self._about)
            connection.send_bytes(self._call)
            text = connection.recv()  # None: it returned
            pickled = connection.recv_bytes()
        except (EOFError, OSError):
            text, pickled = "", b""
        with self._lock:
            if text is None:
                self.values[rank] = pickled
            else:
                self.failures[rank] = Failure(text, pickled)
        with contextlib.suppress(OSError):
            connection.send_bytes(b"")  # the rank may go on to end

    def close(self) -> None:
        """After the job: takes note of how the last ranks ended; nothing listens any more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join(_LAST_SECONDS)
        self._listener.close()
        for rank, _ in self._ranks:
            with contextlib.suppress(OSError):
                rank.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + _LAST_SECONDS
        for _, thread in self._ranks:
            thread.join(max(0, deadline - time.monotonic()))
