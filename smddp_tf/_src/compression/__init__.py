"""Gradient compressors.

A compressor is a class or object with compress(tensor) -> (tensor, context) and
decompress(tensor, context); the compressed tensor is what gets reduced. A compressor whose
compressed form cannot be summed instead has reduce(tensor, average, key, gather), which implements
the whole reduction.
"""

from typing import Any

from smddp_tf._src.compression.casts import BF16Compressor, FP16Compressor
from smddp_tf._src.compression.int8 import Int8Compressor
from smddp_tf._src.compression.topk import TopKCompressor
from smddp_tf._src.types import Compressor, Tensor


class NoneCompressor:
    """Sends gradients uncompressed."""

    name = "none"

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """Returns (tensor, context)."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, context: Any) -> Tensor:
        """Returns the tensor unchanged."""
        del context
        return tensor


def describe(compression: Compressor) -> str:
    """A compressor as ranks compare it: the name of its class, and its ratio if it has one."""
    kind = compression if isinstance(compression, type) else type(compression)
    ratio = getattr(compression, "ratio", None)
    return kind.__name__ + ("" if ratio is None else f"({ratio})")


def check_compressor(compression: Any) -> None:
    """Raises ValueError unless the argument has the interface of a compressor."""
    if compression is TopKCompressor:
        raise ValueError(
            "Compression.topk takes the fraction of elements to send: Compression.topk(0.01)"
        )
    pair = hasattr(compression, "compress") and hasattr(compression, "decompress")
    if not pair and not hasattr(compression, "reduce"):
        raise ValueError(
            f"compression={compression!r} is not a compressor; give Compression.none, .fp16, .bf16"
            ", .int8 or .topk(ratio), or an object with compress(tensor) and decompress(tensor, "
            "context)"
        )


class Compression:
    """The built-in compressors; any class or object with the same methods can be used.

    Examples:
      >>> half = hvd.allreduce(tf.constant([0.5, 1.5]), compression=hvd.Compression.fp16)
      >>> half.numpy().tolist()  # 16 bits per value travel, 32 come back
      [0.5, 1.5]
      >>> topk = hvd.Compression.topk(0.01)  # one object for the whole training
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = Int8Compressor
    topk = TopKCompressor  # takes a ratio: Compression.topk(0.01)
