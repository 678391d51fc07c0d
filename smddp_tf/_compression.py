"""What happens to a gradient before it is sent, and is undone after: stateless pairs."""

from smddp_tf import _native


class NoneCompressor:
    """Sends gradients as they are."""

    name = "none"

    @staticmethod
    def compress(tensor):
        """Returns (tensor, context)."""
        return tensor, None

    @staticmethod
    def decompress(tensor, context):
        """Returns the tensor as it was before compress."""
        del context
        return tensor


class _CastCompressor:
    """Sends floating-point gradients of 32 or 64 bits as 16 bits; others as they are."""

    name = ""

    @classmethod
    def compress(cls, tensor):
        """Returns (16-bit tensor, dtype to restore)."""
        tf = _native.tensorflow()
        if tensor.dtype in (tf.float32, tf.float64):
            return tf.cast(tensor, cls.name), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor, context):
        """Returns the tensor in the dtype that compress was given."""
        return tensor if context is None else _native.tensorflow().cast(tensor, context)


class FP16Compressor(_CastCompressor):
    """Half precision: 11 bits of mantissa, up to 65504. Sums are made in float32."""

    name = "float16"


class BF16Compressor(_CastCompressor):
    """bfloat16: 8 bits of mantissa, the range of float32. Sums are made in float32."""

    name = "bfloat16"


class Compression:
    """The compressors; any class with the same two methods works as well."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
