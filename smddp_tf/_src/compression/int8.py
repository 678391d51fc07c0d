"""Compression to 8 bits per element, with a scale per chunk."""

from collections.abc import Callable
from typing import Any

from smddp_tf._src.graph.framework import ops_of
from smddp_tf._src.types import Tensor


class Int8Compressor:
    """Sends 8 bits per element, and a float32 scale per 256 elements.

    Each chunk is scaled so that its largest magnitude becomes 127. The error of an element of the
    sum is at most the sum over ranks of (the chunk's largest magnitude on that rank) / 254, plus
    float32 rounding. Sends about a quarter of the bytes of float32. A chunk that contains inf or
    nan becomes nan.
    """

    @staticmethod
    def reduce(
        tensor: Tensor, average: bool, key: Any, gather: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Sums (or averages) a floating-point tensor over the ranks.

        Args:
          tensor: a floating-point tensor of any static shape.
          average: divide the sum by the number of ranks.
          key: not used.
          gather: stacks all ranks' tensors along a new first dimension.

        Returns:
          A tensor of the shape and dtype of tensor, bitwise the same on all ranks.
        """
        del key
        ops = ops_of("int8")
        codes, scales = ops.int8_quantize(tensor)
        codes, scales = gather(codes), gather(scales)
        return ops.int8_sum(codes, scales, tensor, codes.shape.as_list()[0] if average else 1)
