"""Adasum of PyTorch tensors, and the optimizer that combines the ranks' steps with it.

Maleki et al., "Scaling Distributed Training with Adaptive Summation" (2020): two vectors become
(1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b, so orthogonal ones are added and parallel ones
averaged. More are combined in a binary tree over the ranks; on a level with an odd count the last
one is passed on unchanged. Each rank combines what all have gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import torch

from smddp_tf._src.job.native import Request
from smddp_tf._src.job.process_sets import ProcessGroup
from smddp_tf.torch import _requests
from smddp_tf.torch._checks import BadInputError


def combine(
    tensors: list[torch.Tensor], before: float, after: float, group: ProcessGroup
) -> Generator[Request, None, None]:
    """Combines tensors of one dtype in place, each with those in its place on other ranks.

    Args:
      tensors: of any shape and a floating dtype. 16-bit ones are combined in float32.
      before: multiplies each tensor.
      after: multiplies each result.
      group: the ranks.

    Raises:
      BadInputError: they are of another dtype.
    """
    dtype = tensors[0].dtype
    if not dtype.is_floating_point:
        raise BadInputError(f"Adasum takes floating-point tensors, not {dtype}")
    with torch.no_grad():
        own = torch.cat([tensor.reshape(-1) for tensor in tensors]) * before
        parts = own.new_empty((group.size, own.numel()))
    shapes = [list(tensor.shape) for tensor in tensors]
    factors = f"prescale_factor={before} postscale_factor={after}"
    yield _requests.allgather(parts, own, words=f"op=Adasum {factors} of {shapes}")
    with torch.no_grad():
        wide = dtype if dtype is torch.float64 else torch.float32
        sizes = [tensor.numel() for tensor in tensors]
        levels = [list(part.to(wide).split(sizes)) for part in parts]
    while len(levels) > 1:
        levels = yield from _half(levels, group.ranks[0])
    with torch.no_grad():
        for tensor, result in zip(tensors, levels[0], strict=True):
            tensor.copy_((result * after).reshape(tensor.shape))


def _half(
    levels: list[list[torch.Tensor]], root: int
) -> Generator[Request, None, list[list[torch.Tensor]]]:
    """One level of the tree: combines the lists of vectors of each two ranks.

    The root's dot products count, as the order in which they are summed may depend on the machine.
    """
    pairs = list(zip(levels[::2], levels[1::2], strict=False))
    with torch.no_grad():
        vectors = [both for pair in pairs for both in zip(*pair, strict=True)]
        products = torch.stack([_products(a, b) for a, b in vectors])
    yield _requests.broadcast([products], root)
    with torch.no_grad():
        dots, norms = products[:, :1], products[:, 1:]
        # A vector of zeros has no direction, so the other one is kept unchanged.
        scales = 1 - 0.5 * torch.where(norms == 0, 0.0, dots / norms)
        rows = iter(
            a * scale[0] + b * scale[1]
            for (a, b), scale in zip(vectors, scales.to(vectors[0][0].dtype), strict=True)
        )
        return [[next(rows) for _ in one] for one, _ in pairs] + levels[2 * len(pairs) :]


def _products(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """[a.b, a.a, b.b]."""
    a, b = a.double(), b.double()
    return torch.stack([torch.dot(a, b), torch.dot(a, a), torch.dot(b, b)])


def combine_steps(
    optimizer: torch.optim.Optimizer,
    buckets: Callable[[], list[list[torch.Tensor]]],
    begin: Callable[[list[torch.Tensor], str], Any],
) -> None:
    """Has step() combine how far each rank's own step has taken the parameters.

    Args:
      optimizer: makes its steps from the rank's own gradients.
      buckets: returns its parameters, as they are now.
      begin: starts to combine the tensors of one bucket, in place; the text names them.
    """
    now: list[list[torch.Tensor]] = []
    starts: list[list[torch.Tensor]] = []

    @torch.compiler.disable
    def before_step(*arguments: Any) -> None:
        now[:] = buckets()
        starts[:] = [[one.detach().clone() for one in bucket] for bucket in now]

    @torch.compiler.disable
    def after_step(*arguments: Any) -> None:
        for number, (bucket, old) in enumerate(zip(now, starts, strict=True)):
            with torch.no_grad():
                deltas = [
                    one.sub(start).contiguous() for one, start in zip(bucket, old, strict=True)
                ]
            begin(deltas, f"steps, bucket {number + 1} of {len(now)}").wait()
            with torch.no_grad():
                for one, start, delta in zip(bucket, old, deltas, strict=True):
                    one.copy_(start + delta)
        starts.clear()

    optimizer.register_step_pre_hook(before_step)
    optimizer.register_step_post_hook(after_step)
