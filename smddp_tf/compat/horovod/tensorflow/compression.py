"""horovod.tensorflow.compression."""

from smddp_tf._src.compression import Compression, NoneCompressor
from smddp_tf._src.compression.casts import FP16Compressor


class Compressor:
    """The base that scripts derive their own compressors from; any class with both will do."""

    @staticmethod
    def compress(tensor):
        """Returns (what is reduced, a context)."""
        raise NotImplementedError("a compressor has compress(tensor)")

    @staticmethod
    def decompress(tensor, context):
        """Returns the tensor that the context belongs to."""
        raise NotImplementedError("a compressor has decompress(tensor, context)")
