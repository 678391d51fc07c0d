"""How ranks find each other while they start, other than by MPI."""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import signal
import threading
from collections.abc import Callable
from typing import Any, Protocol

_Start = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
_Test = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
_Fail = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)
_Why = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_Sign = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)


class Exchange(Protocol):
    """What the core asks of whoever connects the ranks. None of it may raise."""

    def start(self, block: bytes) -> None:
        """Begins an allgather; all ranks' blocks are of one size."""

    def blocks(self) -> bytes | None:
        """The blocks of all ranks, in their order; None as long as some are missing."""

    def fail(self, text: str) -> None:
        """Tells the other ranks that this one cannot start."""

    def why(self) -> str:
        """Why the ranks can no longer start together; "" if nothing is known of."""

    def host(self) -> str:
        """The numeric address of this host by which ranks on others reach it."""

    def secret(self) -> bytes:
        """What only the job's ranks know: they sign their connections with it."""


class Bootstrap(ctypes.Structure):
    """Mirrors smddp_bootstrap in ops/capi/smddp.h. Keep it as long as the job."""

    _fields_ = (
        ("rank", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("context", ctypes.c_void_p),
        ("start", _Start),
        ("test", _Test),
        ("fail", _Fail),
        ("why", _Why),
        ("host", ctypes.c_char_p),
        ("sign", _Sign),
    )

    def __init__(self, rank: int, size: int, exchange: Exchange, job_rank: int = -1) -> None:
        self._exchange = exchange
        self._job_rank = rank if job_rank < 0 else job_rank
        self._signals: list[Any] = []
        self._handler: Any = None
        self._interrupt: BaseException | None = None
        self._said = ctypes.create_string_buffer(b"")
        super().__init__(
            rank,
            size,
            None,
            _Start(lambda _, send, count: self._begin(send, count)),
            _Test(lambda _, receive, count: self._take(receive, count)),
            _Fail(lambda _, text: exchange.fail(text.decode(errors="replace"))),
            _Why(lambda _: self._say()),
            exchange.host().encode(),
            _Sign(lambda _, data, count, signature: self._sign(data, count, signature)),
        )

    def connect(self, core: Callable[[], int]) -> int:
        """Runs a function of the core that takes this, and returns its code.

        SIGINT would raise in whatever Python the core calls then, and ctypes would print and forget
        it. So it is kept until it can be answered. What its handler raises ends the wait.

        Raises:
          BaseException: what a signal's handler raised meanwhile.
        """
        handler = signal.getsignal(signal.SIGINT)
        keeps = callable(handler) and threading.current_thread() is threading.main_thread()
        if keeps:
            self._handler = handler
            signal.signal(signal.SIGINT, lambda *arguments: self._signals.append(arguments))
        try:
            code = core()
        finally:
            if keeps:
                signal.signal(signal.SIGINT, handler)
        self._answer_signals()
        if self._interrupt is not None:
            raise self._interrupt
        return code

    def _answer_signals(self) -> None:
        while self._signals and callable(self._handler):
            self._handler(*self._signals.pop(0))

    def _begin(self, send: int, count: int) -> int:
        self._exchange.start(ctypes.string_at(send, count))
        return 0  # _take() tells of a failure

    def _take(self, receive: int, count: int) -> int:
        try:
            self._answer_signals()
            blocks = self._exchange.blocks()
        except BaseException as error:  # connect() raises it
            self._interrupt = error
            self._exchange.fail(self._interruption())
            return -1
        if blocks is None:
            return -1 if self._exchange.why() else 0
        if len(blocks) != count:
            return -1
        ctypes.memmove(receive, blocks, count)
        return 1

    def _say(self) -> int:
        why = self._exchange.why() if self._interrupt is None else self._interruption()
        self._said = ctypes.create_string_buffer(why.encode())
        return ctypes.addressof(self._said)

    def _interruption(self) -> str:
        kind = type(self._interrupt).__name__
        return f"rank {self._job_rank} was interrupted while it waited for others ({kind})"

    def _sign(self, data: int, count: int, signature: int) -> None:
        own = hmac.digest(self._exchange.secret(), ctypes.string_at(data, count), hashlib.sha256)
        ctypes.memmove(signature, own, len(own))
