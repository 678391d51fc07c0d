"""A rank's side of an elastic job: its connection to smddprun, by which the ranks find each other.

smddprun gives each of its processes an address, a secret and a slot. The ranks that train together
form an epoch. When one is lost, or others are to come, the ranks leave the epoch and ask for the
next (docs/elastic.md). The messages are those of launch/elastic/server.py.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import os
import select
import socket
import threading
import time
from typing import Any

from smddp_tf._src.job import config
from smddp_tf._src.job.bootstrap import Bootstrap
from smddp_tf._src.job.signed import NONCE_BYTES, Codec, give_up_silence
from smddp_tf.errors import InitError

_CONNECT_SECONDS = 30
_TEST_SECONDS = 0.005  # how long a test of an allgather waits for messages
_GONE = "smddprun, which started this rank, has ended"


@dataclasses.dataclass(frozen=True)
class Place:
    """A rank in an epoch.

    Epoch 0 is none: the ranks stay as they are, or this process `leaves`, or, of one rank, has not
    been let in yet.
    """

    epoch: int = 0
    rank: int = 0
    size: int = 0
    slots: tuple[int, ...] = ()  # of each rank
    leaves: bool = False


class Rendezvous:
    """The connection to smddprun.

    Args:
      address: "host:port".
      secret: of the job.
      slot: this process's number.

    Raises:
      OSError: there is nobody at the address.
    """

    def __init__(self, address: str, secret: bytes, slot: int) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        give_up_silence(self._socket)
        self._host = self._socket.getsockname()[0]  # by which others may reach this one
        nonce = b""
        while len(nonce) < NONCE_BYTES:
            part = self._socket.recv(NONCE_BYTES - len(nonce))
            if not part:
                raise ConnectionError(_GONE)
            nonce += part
        self._secret, self._codec = secret, Codec(secret, nonce, serves=False)
        self._lock = threading.RLock()
        self._place = Place()
        self._running: int | None = None  # how many ranks there were when this process came
        self._answer: Place | None = None
        self._over = ""  # why the job cannot go on
        self._void = ""  # why the epoch cannot
        self._updated = False
        self._alone = False
        self._gathers = 0
        self._gathered: dict[int, bytes] = {}
        self._send({"do": "join", "slot": slot})
        os.register_at_fork(after_in_child=self._leave_to_parent)

    def _leave_to_parent(self) -> None:
        """A child of this process would keep the connection open when the rank has died."""
        self._socket.close()

    # ---- messages -------------------------------------------------------------------------------

    def _send(self, message: dict[str, Any]) -> None:
        with self._lock:
            try:
                self._socket.sendall(self._codec.encode(message))
            except OSError:
                self._over = self._over or _GONE

    def _receive(self, seconds: float) -> None:
        """Takes what has come, or comes first within this time."""
        with self._lock:
            try:
                if not select.select([self._socket], [], [], seconds)[0]:
                    return
                data = self._socket.recv(1 << 20)
                messages = self._codec.decode(data)
            except (OSError, ValueError):
                data, messages = b"", []
            if not data:
                self._over = self._over or _GONE
            for message in messages:
                self._take(message)

    def _take(self, message: dict[str, Any]) -> None:
        kind, epoch = message["do"], message.get("epoch")
        if kind == "epoch":
            place = (message["epoch"], message["rank"], message["size"], tuple(message["slots"]))
            self._place = Place(*place)
            self._answer = self._place
            self._void, self._updated = "", False
        elif kind == "same":
            self._answer = Place()
        elif kind == "leave":
            self._answer = Place(leaves=True)
        elif kind == "welcome":
            self._running = message["size"]
        elif kind == "here":
            self._host = message["address"]
        elif kind == "end":
            self._over = message["why"]
        elif epoch != self._place.epoch:
            pass  # of an epoch that was left
        elif kind == "void":
            self._void = message["why"]
        elif kind == "update":
            self._updated = True
        elif kind == "gathered":
            blocks = [base64.b64decode(block) for block in message["data"]]
            self._gathered[message["number"]] = b"".join(blocks)

    # ---- epochs ---------------------------------------------------------------------------------

    @property
    def place(self) -> Place:
        """This rank's, in the epoch that it was in last; of epoch 0 if it was in none."""
        return self._place

    def running(self) -> int:
        """The number of ranks that trained when this process came; 0 if the job had not begun.

        Raises:
          InitError: the job is over.
        """
        while self._running is None and not self._over:
            self._receive(1.0)
        if self._running is None:
            raise InitError(self._over)
        return self._running

    def next(self, lost: bool, again: bool, committed: bool = False) -> Place:
        """Leaves the epoch, and waits for the next; without `epoch` if there is none.

        Args:
          lost: a collective has failed, so another rank may have been lost.
          again: there is to be a next epoch although no rank was lost.
          committed: this rank has committed since the epoch began.

        Raises:
          InitError: the job is over.
        """
        with self._lock:
            self._answer = None
            message: dict[str, Any] = {"do": "next", "epoch": self._place.epoch}
            if lost:
                message["because"] = "error"
            if again:
                message["again"] = True
            if committed:
                message["committed"] = True
            self._send(message)
            while self._answer is None and not self._over:
                self._receive(1.0)
            if self._answer is None:
                raise InitError(self._over)
            return self._answer

    def is_updated(self) -> bool:
        """Whether ranks are to come or to leave, so that this one should ask for the next epoch."""
        self._receive(0)
        return self._updated

    def leaves_later(self) -> bool:
        """After SIGTERM: says that this rank is to leave; False if the job ends, so it ends now."""
        with self._lock:
            self._receive(0)
            if not self._over:
                self._send({"do": "leaving"})
            return not self._over

    def is_void(self, seconds: float) -> bool:
        """Whether a rank of the epoch was lost; waits up to so many seconds to hear of it."""
        end = time.monotonic() + seconds
        while not (self._void or self._over) and time.monotonic() < end:
            self._receive(max(0.0, end - time.monotonic()))
        return bool(self._void)

    def finish(self, well: bool) -> None:
        """Says that this rank's training has ended well, if so, and closes the connection.

        Otherwise that is a loss, of which the others hear before the process has ended.
        """
        if well:
            self._send({"do": "bye"})
        with self._lock, contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    # ---- Exchange -------------------------------------------------------------------------------

    def start(self, block: bytes) -> None:
        """Begins an allgather."""
        self._gathers += 1
        if self._alone:
            self._gathered[self._gathers] = block
            return
        data = base64.b64encode(block).decode()
        epoch = self._place.epoch
        self._send({"do": "gather", "epoch": epoch, "number": self._gathers, "data": data})

    def blocks(self) -> bytes | None:
        """The blocks of all ranks, once smddprun has sent them."""
        if not self._alone:
            self._receive(_TEST_SECONDS)
        return self._gathered.pop(self._gathers, None)

    def fail(self, text: str) -> None:
        """Tells the other ranks that this one cannot start."""
        self._send({"do": "fail", "epoch": self._place.epoch, "why": text})

    def why(self) -> str:
        """Why the ranks of the epoch can no longer start together; "" if they can."""
        self._receive(0)
        return self._void or self._over

    def host(self) -> str:
        """The address by which others may reach this host."""
        return self._host

    def secret(self) -> bytes:
        """The job's."""
        return self._secret

    def bootstrap(self, place: Place) -> Bootstrap:
        """What smddp_init_with() takes; kept here, since it holds functions."""
        self._alone = place.size == 1
        self._gathers, self._gathered = 0, {}  # all ranks count from here
        self._bootstrap = Bootstrap(place.rank, place.size, self)
        return self._bootstrap


def is_elastic() -> bool:
    """Whether smddprun started this process as one of an elastic job."""
    return bool(config.rendezvous()[0])


@functools.cache
def connection() -> Rendezvous:
    """The connection, made at the first call.

    Raises:
      InitError: smddprun is not there.
    """
    address, secret, slot = config.rendezvous()
    try:
        return Rendezvous(address, bytes.fromhex(secret), int(slot))
    except (OSError, ValueError) as error:
        raise InitError(
            f"the elastic job's rendezvous at {address} cannot be reached ({error}): smddprun has "
            "ended, or SMDDP_RENDEZVOUS was set by something else; unset it to train alone"
        ) from error
