"""The ranks' connections: signed messages over TCP.

Ranks of this machine come by its loopback interface; those of others by the one address that leads
to them.

The server sends a nonce; then both sides send frames of signed.Codec. A frame that is not signed
right, a message that is not understood or that the driver does not allow closes the connection. A
connection that ends without "bye" is a loss. A rank sends:

    {"do": "join", "slot": K}             the first message
    {"do": "next", "epoch": E}            it has left epoch E (0: none yet) and asks for the next;
                                          with "because": "error" if that is why, and it knows;
                                          with "again": true if there is to be another although
                                          no member was lost; with "committed" if it has
    {"do": "gather", "epoch": E, "number": I, "data": text}
                                          its part of an allgather among the epoch's members
    {"do": "fail", "epoch": E, "why": text}
                                          it cannot start in this epoch, and leaves the job
    {"do": "leaving"}                     it got SIGTERM, and leaves when it next asks
    {"do": "bye"}                         it ends well, unless its exit code says otherwise

and receives:

    {"do": "welcome", "size": N}          to "join": so many ranks train already; if there are any,
                                          it waits beside them until it asks
    {"do": "epoch", "epoch": E, "rank": R, "size": N, "slots": [K of each rank]}
                                          to "next"
    {"do": "same", "epoch": E}            to "next": no member was lost, and nobody asked "again"
    {"do": "leave"}                       to "next": it is no longer wanted
    {"do": "end", "why": text}            to "next": the job has failed; or smddprun ends it
    {"do": "here", "address": text}       ranks on other hosts reach this machine by that address
    {"do": "gathered", "epoch": E, "number": I, "data": [text of each rank]}
    {"do": "void", "epoch": E, "why": text}
                                          a member of E was lost; it is to ask for the next
    {"do": "update", "epoch": E}          others are to come or to leave; all members are to ask for
                                          the next when they next commit
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import Any, Protocol

from smddp_tf._src.job.signed import NONCE_BYTES, Codec, give_up_silence
from smddp_tf.launch import supervise

_JOIN_SECONDS = 30  # from connecting to the first message
_PIECE = 1 << 16


class Receiver(Protocol):
    """Who hears of connections. These raise ValueError for what is not allowed."""

    def joined(self, slot: int) -> None:
        """A slot has connected."""

    def received(self, slot: int, message: dict[str, Any]) -> None:
        """A slot has sent this."""

    def disconnected(self, slot: int) -> None:
        """A slot's connection has ended."""


class Server:
    """Listens for ranks.

    Args:
      secret: of the job; messages are signed with it.
      receiver: is called for each message.
    """

    def __init__(self, secret: bytes, receiver: Receiver) -> None:
        self._secret, self._receiver = secret, receiver
        self._connections: dict[int, tuple[asyncio.StreamWriter, Codec]] = {}
        self._tasks: set[asyncio.Task] = set()
        self._servers: list[asyncio.Task[asyncio.Server]] = []

    def listen(self, host: str) -> str:
        """Lets ranks come to this numeric address too, and returns it with a port.

        Raises:
          OSError: it is not of this machine, or no port is free.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        bound = socket.create_server((host, 0), family=family, backlog=1000)
        coming = asyncio.start_server(self._serve, sock=bound)
        self._servers.append(asyncio.get_running_loop().create_task(coming))
        return f"{host}:{bound.getsockname()[1]}"

    def is_connected(self, slot: int) -> bool:
        """Whether the slot's connection has not ended."""
        return slot in self._connections

    def send(self, slot: int, message: dict[str, Any]) -> None:
        """Sends a message; to a slot that has gone it is dropped."""
        if slot in self._connections:
            writer, codec = self._connections[slot]
            writer.write(codec.encode(message))

    async def close(self) -> None:
        """Ends all connections."""
        for server in self._servers:
            (await server).close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            # asyncio's own TimeoutError is another class in Python 3.10.
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await self._converse(reader, writer)
        except (ValueError, KeyError, TypeError) as error:
            supervise.say(f"a rank's connection is closed: {type(error).__name__}: {error}")
        finally:
            for slot, (held, _) in list(self._connections.items()):
                if held is writer:
                    del self._connections[slot]
                    self._receiver.disconnected(slot)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Takes messages until the connection ends."""
        give_up_silence(writer.get_extra_info("socket"))
        nonce = os.urandom(NONCE_BYTES)
        codec = Codec(self._secret, nonce, serves=True)
        writer.write(nonce)
        # What is not a rank of this job must not be able to keep a connection.
        slot, messages = await asyncio.wait_for(self._join(reader, codec), _JOIN_SECONDS)
        if slot in self._connections:  # a child of the rank, say, which has its environment
            raise ValueError(f"slot {slot} is connected already")
        self._connections[slot] = writer, codec
        self._receiver.joined(slot)
        while True:
            for message in messages:
                self._receiver.received(slot, message)
            piece = await reader.read(_PIECE)
            if not piece:
                return
            messages = codec.decode(piece)

    async def _join(self, reader: asyncio.StreamReader, codec: Codec) -> tuple[int, list]:
        """The slot that a connection's first message names, and further messages."""
        while piece := await reader.read(_PIECE):
            messages = codec.decode(piece)
            if messages:
                first, *rest = messages
                if first["do"] != "join":
                    raise ValueError(f"the first message is {first['do']!r}, not 'join'")
                return int(first["slot"]), rest
        raise ConnectionResetError("the connection ended before a slot joined")
