"""Sending between two ranks: by the core in a group on one node, else by gloo.

gloo connects ranks when they first need to. Both read and write the host's memory only, so tensors
on a GPU pass through it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch.distributed import PrefixStore, Work

from smddp_tf.torch import _gloo
from smddp_tf.torch._messages import Messages


class _ThroughHost(Work):
    """Receives into the host's memory; wait() brings it to the GPU."""

    def __init__(self, work: Work, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self._work, self._pairs = work, pairs

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits for the sender, and enqueues the copy in the caller's stream."""
        done = self._work.wait() if timeout is None else self._work.wait(timeout)
        pairs, self._pairs = self._pairs, []
        with torch.no_grad():
            for target, received in pairs:
                target.copy_(received)
        return done

    def is_completed(self) -> bool:
        """Whether wait() would return at once."""
        return self._work.is_completed()

    def source_rank(self) -> int:
        """The sender, after recv_anysource()."""
        return self._work._source_rank()

    _source_rank = source_rank


def carrier(
    store: Any, rank: int, size: int, timeout: timedelta, messages: Messages
) -> Messages | Any:
    """What carries a group's messages, the same on all its ranks.

    Args:
      store: of the group.
      rank: this process's, in the group.
      size: the number of ranks in it.
      timeout: of a message of gloo's.
      messages: of the group, by the core.
    """
    if messages.serve():
        return messages
    return _gloo.connect(PrefixStore("p2p", store), rank, size, timeout, lazy=True)


class PointToPoint:
    """Sends and receives tensors, wherever they are.

    Args:
      carrier: of the group.
    """

    def __init__(self, carrier: Messages | Any) -> None:
        self._carrier = carrier

    def send(self, tensors: Any, dst: int, tag: int) -> Work:
        """Sends a list of one tensor."""
        return self._carrier.send([tensor.detach().cpu() for tensor in tensors], dst, tag)

    def recv(self, tensors: Any, src: int, tag: int) -> Work:
        """Receives into a list of one tensor."""
        return self._into(tensors, lambda host: self._carrier.recv(host, src, tag))

    def recv_anysource(self, tensors: Any, tag: int) -> Work:
        """Receives from any rank."""
        return self._into(tensors, lambda host: self._carrier.recv_anysource(host, tag))

    def leave(self) -> None:
        """Ends messages that no peer has begun to read; what gloo runs goes on."""
        if isinstance(self._carrier, Messages):
            self._carrier.leave()

    @staticmethod
    def _into(tensors: Any, receive: Any) -> Work:
        if not any(tensor.is_cuda for tensor in tensors):
            return receive(tensors)
        host = [torch.empty_like(tensor, device="cpu") for tensor in tensors]
        return _ThroughHost(receive(host), list(zip(tensors, host, strict=True)))
