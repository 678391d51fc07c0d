"""Messages between ranks and smddprun: JSON in frames, each signed with the job's secret.

A frame is its length in 4 bytes (big-endian), the signature in 32, and the JSON. The signature is
HMAC-SHA-256 (RFC 2104) of the connection's nonce, the direction, the frame's number in this
direction and the JSON. So a frame can be neither forged nor sent again, in another connection
either.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import struct
from typing import Any

NONCE_BYTES = 16  # sent first, unsigned, by the side that was connected to
_MOST_BYTES = 64 << 20
_SIGNATURE_BYTES = 32

# After 2 + 4 * 2 = 10 s.
_IDLE_SECONDS, _PROBE_SECONDS, _PROBES = 2, 2, 4
_UNANSWERED_MS = 10_000


def give_up_silence(connection: socket.socket) -> None:
    """Has the kernel end a connection whose other host does not answer: it is lost, or the link.

    A process that is busy or stopped does not matter; its kernel answers.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _IDLE_SECONDS),
        (socket.TCP_KEEPINTVL, _PROBE_SECONDS),
        (socket.TCP_KEEPCNT, _PROBES),
        (socket.TCP_USER_TIMEOUT, _UNANSWERED_MS),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


class Codec:
    """Turns messages into bytes and back; does no I/O itself.

    Args:
      secret: of the job.
      nonce: of the connection.
      serves: whether this is the side that was connected to.
    """

    def __init__(self, secret: bytes, nonce: bytes, serves: bool) -> None:
        self._secret, self._nonce = secret, nonce
        self._own, self._others = (b"s", b"c") if serves else (b"c", b"s")
        self._sent = self._received = 0
        self._rest = b""

    def _signature(self, direction: bytes, number: int, text: bytes) -> bytes:
        signed = self._nonce + direction + struct.pack(">Q", number) + text
        return hmac.new(self._secret, signed, hashlib.sha256).digest()

    def encode(self, message: dict[str, Any]) -> bytes:
        """A frame to send."""
        text = json.dumps(message).encode()
        signature = self._signature(self._own, self._sent, text)
        self._sent += 1
        return struct.pack(">I", len(text)) + signature + text

    def decode(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that are complete with these bytes, which were received.

        Raises:
          ValueError: a frame is not signed with the job's secret, or is too long.
        """
        self._rest += data
        messages = []
        head = 4 + _SIGNATURE_BYTES
        while len(self._rest) >= head:
            (size,) = struct.unpack(">I", self._rest[:4])
            if size > _MOST_BYTES:
                raise ValueError(f"a frame of {size} bytes; the most is {_MOST_BYTES}")
            if len(self._rest) < head + size:
                break
            text = self._rest[head : head + size]
            wanted = self._signature(self._others, self._received, text)
            if not hmac.compare_digest(self._rest[4:head], wanted):
                raise ValueError("a frame is not signed with this job's secret")
            self._received += 1
            self._rest = self._rest[head + size :]
            messages.append(json.loads(text))
        return messages
