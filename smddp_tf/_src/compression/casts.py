"""Compression to 16-bit floats."""

from typing import Any

from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.types import Tensor


class _CastCompressor:
    """Sends 32- and 64-bit floating-point gradients as 16 bits, others uncompressed."""

    name = ""

    @classmethod
    def compress(cls, tensor: Tensor) -> tuple[Tensor, Any]:
        """Returns (16-bit tensor, dtype to restore)."""
        tf = tensorflow()
        if tensor.dtype in (tf.float32, tf.float64):
            return tf.cast(tensor, cls.name), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, context: Any) -> Tensor:
        """Returns the tensor, cast back to the original dtype."""
        return tensor if context is None else tensorflow().cast(tensor, context)


class FP16Compressor(_CastCompressor):
    """Half precision: 11 bits of mantissa, values up to 65504. Sums are computed in float32.

    Error of an element: at most 2^-11 of each rank's value plus 2^-11 of the result. Values beyond
    65504 become inf.
    """

    name = "float16"


class BF16Compressor(_CastCompressor):
    """bfloat16: 8 bits of mantissa, the range of float32. Sums are computed in float32.

    Error of an element: at most 2^-8 of each rank's value plus 2^-8 of the result.
    """

    name = "bfloat16"
