"""A GPU's stream in which the caller of a collective works. Without GPUs there is none.

The core starts behind what that stream has to do, and tells when the results are complete for every
stream. What a collective computes in between, on another thread, has to go into the caller's stream
too: PyTorch gives each thread its own.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch


def of(values: Any) -> torch.cuda.Stream | None:
    """The caller's stream on the GPU of the first tensor in (lists of) values that is on one."""
    if not torch.cuda.is_initialized():
        return None
    if isinstance(values, torch.Tensor):
        return torch.cuda.current_stream(values.device) if values.is_cuda else None
    if not isinstance(values, (list, tuple)):
        return None
    return next((found for found in map(of, values) if found is not None), None)


def working_in(stream: torch.cuda.Stream | None) -> contextlib.AbstractContextManager[Any]:
    """Has this thread work in a stream, if there is one."""
    return contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)


def follow(stream: torch.cuda.Stream | None) -> None:
    """Has the stream of this thread, on the same GPU, wait for what is in `stream` now."""
    if stream is not None:
        torch.cuda.current_stream(stream.device).wait_stream(stream)


def future(stream: torch.cuda.Stream | None) -> Any:
    """A future whose callbacks work behind what the thread that completes it has enqueued."""
    return torch.futures.Future(devices=[] if stream is None else [stream.device])
