"""Messages between two ranks of one node, by the core: the receiver reads the sender's memory.

As with NCCL and gloo, a message is over once both ranks have asked for it. Between two ranks,
messages of one tag are received in the order in which they are sent.
"""

from __future__ import annotations

import ctypes
import functools
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import DistBackendError, Work

from smddp_tf._src.job import native
from smddp_tf._src.job.enums import Code
from smddp_tf.torch import _checks

_ANY_RANK = -1
_FEW = 64  # messages that are not over

# What is sent and received must stay in memory, whatever becomes of the Work that a script has.
_under_way: set[Message] = set()
_look_at = _FEW


@functools.cache
def _core() -> ctypes.CDLL:
    core = native.core()
    number, handle = ctypes.c_int, ctypes.c_void_p
    core.smddp_message_start.argtypes = [
        *(number, number, number, ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p),
        *(ctypes.c_double, ctypes.POINTER(handle)),
    ]
    results = [ctypes.POINTER(number), ctypes.POINTER(number)]
    core.smddp_message_wait.argtypes = [handle, ctypes.c_double, *results]
    core.smddp_message_withdraw.argtypes = core.smddp_message_delete.argtypes = [handle]
    core.smddp_message_withdraw.restype = core.smddp_message_delete.restype = None
    return core


def _forget_what_is_over() -> None:
    """Looks, from time to time, for messages that have ended without a wait."""
    global _look_at
    if len(_under_way) > _look_at:
        for message in tuple(_under_way):
            message.is_completed()
        _look_at = max(_FEW, 2 * len(_under_way))


class Message(Work):
    """One side of a message.

    Args:
      group: whose message it is.
      peer: the other rank's place in the group; _ANY_RANK: whoever sends.
      tag: of the message.
      memory: a plain tensor.
      target: the tensor that what comes into `memory` is for; None: this side sends.
    """

    def __init__(
        self,
        group: Messages,
        peer: int,
        tag: int,
        memory: torch.Tensor,
        target: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self.group = group
        self._name = f"tag {tag} of group {group.name}"
        self._memory, self._target = memory, target
        self._error: DistBackendError | None = None
        self._source, self._ended = _ANY_RANK, False
        self._core = _core()
        self._handle = ctypes.c_void_p()
        bytes_ = memory.numel() * memory.element_size()
        code = self._core.smddp_message_start(
            group.process_set, target is None, peer, memory.data_ptr(), bytes_,
            self._name.encode(), group.limit, ctypes.byref(self._handle),
        )  # fmt: skip
        if code != Code.OK:
            raise self._failure(native.last_error())
        _under_way.add(self)
        _forget_what_is_over()

    def __del__(self) -> None:
        if self._handle:
            self._core.smddp_message_delete(self._handle)

    def _failure(self, message: str) -> DistBackendError:
        what = "send" if self._target is None else "recv"
        where = what if self._name in message else f"{what}, {self._name}"
        return DistBackendError(f"smddp: {message} ({where})")

    def _look(self, seconds: float) -> bool:
        """Waits for so many seconds; below 0: without a limit. Returns whether it has ended."""
        if self._ended:
            return True
        over, source = ctypes.c_int(), ctypes.c_int()
        code = self._core.smddp_message_wait(
            self._handle, seconds, ctypes.byref(over), ctypes.byref(source)
        )
        error = None if code == Code.OK else self._failure(native.last_error())
        if not over:
            if error is not None:
                raise error
            return False
        if error is None and self._target is not None and self._target is not self._memory:
            self._target.detach().copy_(self._memory)
        self._error, self._source, self._ended = error, source.value, True
        _under_way.discard(self)
        return True

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits for the end.

        Args:
          timeout: of this wait; the message itself goes on after it.

        Raises:
          DistBackendError: the message failed, or the timeout has passed.
        """
        seconds = timeout.total_seconds() if timeout else 0
        if not self._look(seconds if seconds > 0 else -1):
            raise self._failure(f"not complete after {seconds:g} s, and goes on")
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self._look(0)

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        """What made it fail."""
        return self._error

    def synchronize(self) -> None:
        """Same as wait()."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """The tensor that was sent or received, in a list."""
        self.wait()
        return [self._memory if self._target is None else self._target]

    def source_rank(self) -> int:
        """The sender's rank in the group, after recv_anysource()."""
        return self._source

    _source_rank = source_rank

    def withdraw(self) -> None:
        """Ends it, unless it is being read."""
        self._core.smddp_message_withdraw(self._handle)


class Messages:
    """A group's messages.

    Args:
      process_set: the core's number of the group's ranks.
      name: of the group, equal on all its ranks.
      limit: seconds that a wait may take; 0: SMDDP_TIMEOUT_SECONDS.
    """

    def __init__(self, process_set: int, name: str, limit: float) -> None:
        self.process_set, self.name, self.limit = process_set, name, limit

    def serve(self) -> bool:
        """Whether the group's ranks have messages; the same on all of them."""
        return _core().smddp_has_messages(self.process_set) == 1

    def send(self, tensors: Any, dst: int, tag: int) -> Work:
        """Sends a list of one tensor."""
        tensor = _checks.only(tensors, "send")
        _checks.check_dense([tensor], "send")
        return Message(self, dst, tag, _checks.rows(tensor))

    def recv(self, tensors: Any, src: int, tag: int) -> Work:
        """Receives into a list of one tensor, which may be larger than what comes."""
        tensor = _checks.only(tensors, "recv")
        _checks.check_dense([tensor], "recv")
        memory = tensor if _checks.is_plain(tensor) else _checks.rows(tensor)
        return Message(self, src, tag, memory, tensor)

    def recv_anysource(self, tensors: Any, tag: int) -> Work:
        """Receives from any rank."""
        return self.recv(tensors, _ANY_RANK, tag)

    def leave(self) -> None:
        """Ends the group's messages that no peer has begun to read."""
        for message in tuple(_under_way):
            if message.group is self and not message.is_completed():
                message.withdraw()
