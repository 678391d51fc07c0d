"""Compression under the name that it has in Horovod's TensorFlow module."""

from smddp_tf._src.compression import Compression, NoneCompressor
from smddp_tf._src.compression.casts import FP16Compressor

__all__ = ["Compression", "FP16Compressor", "NoneCompressor"]
