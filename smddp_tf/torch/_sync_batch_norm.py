"""Batch normalization over the batches of all ranks, as Ioffe and Szegedy (2015) have it for one.

Ranks gather each channel's count, mean and sum of squared deviations, and combine them by the
formula of Chan, Golub and LeVeque (1983), which loses no digits where means are large.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from smddp_tf._src.job.basics import size
from smddp_tf._src.job.reduce_op import Sum
from smddp_tf.torch._collectives import allgather, allreduce


def _as_channel(values: torch.Tensor, dims: int) -> torch.Tensor:
    """Values of channels, to be broadcast against an input of so many dimensions."""
    return values.view([1, -1] + (dims - 2) * [1])


def _statistics(inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Over all ranks: the elements of a channel, and each channel's mean and variance."""
    others = [dim for dim in range(inputs.dim()) if dim != 1]
    count = inputs.numel() // inputs.shape[1]
    mean = inputs.mean(others) if count else inputs.new_zeros(inputs.shape[1])
    squares = (inputs - _as_channel(mean, inputs.dim())).square().sum(others)
    own = torch.stack([torch.full_like(mean, count), mean, squares])
    counts, means, deviations = allgather(own[None]).unbind(1)
    total = counts.sum(0)
    mean = (counts * means).sum(0) / total
    variance = (deviations + counts * (means - mean).square()).sum(0) / total
    return total, mean, variance


class _Normalize(torch.autograd.Function):
    """Normalizes by statistics of all ranks, of which the gradient knows that they depend on it."""

    @staticmethod
    def forward(ctx: Any, inputs: Any, weight: Any, bias: Any, statistics: Any, eps: float) -> Any:
        total, mean, variance = statistics
        scale = torch.rsqrt(variance + eps)
        dims = inputs.dim()
        normal = (inputs.to(mean.dtype) - _as_channel(mean, dims)) * _as_channel(scale, dims)
        ctx.save_for_backward(normal, scale, weight, total)
        output = normal if weight is None else normal * _as_channel(weight, dims)
        output = output if bias is None else output + _as_channel(bias, dims)
        return output.to(inputs.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        normal, scale, weight, total = ctx.saved_tensors
        dims, others = normal.dim(), [dim for dim in range(normal.dim()) if dim != 1]
        gradient = gradients[0].to(normal.dtype)
        sums = torch.stack([gradient.sum(others), (gradient * normal).sum(others)])
        of_input = None
        if ctx.needs_input_grad[0]:
            plain, along = allreduce(sums, op=Sum) / total
            rest = gradient - _as_channel(plain, dims) - normal * _as_channel(along, dims)
            factor = scale if weight is None else scale * weight
            of_input = (rest * _as_channel(factor, dims)).to(gradients[0].dtype)
        of_bias, of_weight = sums
        return (
            of_input,
            of_weight.to(weight.dtype) if ctx.needs_input_grad[1] else None,
            of_bias.to(weight.dtype) if ctx.needs_input_grad[2] else None,
            None,
            None,
        )


class SyncBatchNorm(torch.nn.modules.batchnorm._BatchNorm):
    """Batch normalization whose statistics are those of all ranks' batches together.

    Arguments are those of torch.nn.BatchNorm1d. Batches may have different sizes on the ranks; all
    ranks have to call the layer in the same order. Gradients of weight and bias are those of this
    rank's batch, which DistributedOptimizer reduces.

    Args:
      num_features: channels, the second dimension of inputs [N, C, ...].
      eps: is added to the variance.
      momentum: of the running statistics; None: their average over all batches.
      affine: whether there are weight and bias.
      track_running_stats: whether evaluation uses running statistics; otherwise those of the batch.

    Raises:
      ValueError: inputs have one dimension, or one element a channel on all ranks together.

    Examples:
      >>> layer = hvd.SyncBatchNorm(3)
      >>> layer(torch.randn(4, 3)).shape
      torch.Size([4, 3])
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002 - torch's name
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm takes inputs [N, C, ...], not of shape {input.shape}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        """Normalizes inputs [N, C, ...]."""
        self._check_input_dim(input)
        if not self.training and self.track_running_stats:
            return functional.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        if size() == 1:
            return super().forward(input)
        with torch.no_grad():
            precise = input.detach().to(torch.promote_types(input.dtype, torch.float32))
            statistics = _statistics(precise)
            if statistics[0][0] < 2:
                raise ValueError(
                    "SyncBatchNorm takes more than one value of each channel, of all ranks "
                    f"together; this rank's input has the shape {list(input.shape)}"
                )
            if self.training and self.track_running_stats:
                self._follow(*statistics)
        return _Normalize.apply(input, self.weight, self.bias, statistics, self.eps)

    def _follow(self, total: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Moves the running statistics towards those of a batch."""
        self.num_batches_tracked += 1
        momentum = self.momentum
        if momentum is None:
            momentum = 1 / self.num_batches_tracked.item()
        unbiased = variance * total / (total - 1)
        for running, now in ((self.running_mean, mean), (self.running_var, unbiased)):
            running += momentum * (now.to(running.dtype) - running)
