"""Horovod's compressors of PyTorch tensors."""

from __future__ import annotations

from typing import Any

import torch


class Compressor:
    """The base that scripts derive their own compressors from; any class with both will do."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns (what is reduced, a context)."""
        raise NotImplementedError("a compressor has compress(tensor)")

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """Returns the tensor that the context belongs to."""
        raise NotImplementedError("a compressor has decompress(tensor, context)")


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns (tensor, None)."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """Returns the tensor."""
        del context
        return tensor


class FP16Compressor(Compressor):
    """Sends floating tensors in 16 bits. The core sums them in 32."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns (float16 tensor, its dtype)."""
        small = tensor.half() if tensor.dtype.is_floating_point else tensor
        return small, tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """Returns the tensor in the dtype that it had."""
        return tensor.to(context)


class Compression:
    """The built-in compressors.

    Examples:
      >>> hvd.allreduce(torch.tensor([0.5]), compression=hvd.Compression.fp16).tolist()
      [0.5]
    """

    none = NoneCompressor
    fp16 = FP16Compressor
