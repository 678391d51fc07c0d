"""What happens to a gradient before it is sent, and is undone after.

A compressor is a class or an object with compress(tensor) -> (tensor, context) and
decompress(tensor, context); what compress returns is reduced as it is. One whose compressed form
cannot be summed has reduce(tensor, average, key, gather) instead, which does the whole reduction.
"""

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
    """Half precision: 11 bits of mantissa, up to 65504. Sums are made in float32.

    Error of an element: at most 2^-11 of each rank's value, and 2^-11 of the result; values beyond
    65504 become inf.
    """

    name = "float16"


class BF16Compressor(_CastCompressor):
    """bfloat16: 8 bits of mantissa, the range of float32. Sums are made in float32.

    Error of an element: at most 2^-8 of each rank's value, and 2^-8 of the result.
    """

    name = "bfloat16"


class Int8Compressor:
    """Sends 8 bits for each element, and a float32 scale for every CHUNK of them.

    A chunk is scaled so that its largest magnitude becomes 127. Error of an element of the sum: at
    most the sum over ranks of (the chunk's largest magnitude on that rank) / 254, besides float32
    rounding. Bytes sent: about a quarter of float32's. A chunk with inf or nan becomes nan.
    """

    CHUNK = 256

    @classmethod
    def reduce(cls, tensor, average: bool, key, gather):
        """Sums (or averages) a floating-point tensor over the ranks.

        Args:
          tensor: of any shape.
          average: divide the sum by the number of ranks.
          key: not used.
          gather: stacks a tensor of all ranks along a new first dimension.

        Returns:
          A tensor of the shape and dtype of tensor, bitwise the same on all ranks.
        """
        del key
        tf = _native.tensorflow()
        flat = tf.reshape(tf.cast(tensor, tf.float32), [-1])
        chunks = tf.reshape(tf.pad(flat, [[0, -flat.shape[0] % cls.CHUNK]]), [-1, cls.CHUNK])
        scales = tf.reduce_max(tf.abs(chunks), axis=1, keepdims=True) / 127.0
        codes = tf.cast(tf.round(tf.math.divide_no_nan(chunks, scales)), tf.int8)
        codes, scales = gather(codes), gather(scales)
        total = tf.add_n([tf.cast(c, tf.float32) * s for c, s in _pairs(codes, scales)])
        if average:
            total /= float(codes.shape[0])
        flat = tf.reshape(total, [-1])[: flat.shape[0]]
        return tf.cast(tf.reshape(flat, tf.shape(tensor)), tensor.dtype)


def _pairs(first, second):
    tf = _native.tensorflow()
    return zip(tf.unstack(first), tf.unstack(second), strict=True)


class TopKCompressor:
    """Sends the largest elements only, and keeps the rest for the next step.

    Lin et al., "Deep Gradient Compression" (2018), without its momentum correction. What a rank did
    not send is added to its next gradient, so nothing is lost: after any number of steps the sum of
    what was sent and what is kept equals the sum of the gradients, up to float32 rounding. Error of
    one step: what is kept, no element of which is larger than the smallest that was sent. Bytes
    sent: 8 for each element that is.

    Args:
      ratio: the part of the elements that is sent, more than 0 and at most 1; at least one element.

    Raises:
      ValueError: ratio is out of range.
    """

    def __init__(self, ratio=0.01) -> None:
        if not 0 < ratio <= 1:
            raise ValueError(f"ratio={ratio} is not more than 0 and at most 1")
        self.ratio = ratio
        self.kept: dict = {}  # key -> tf.Variable, float32

    def __reduce__(self):
        """A copy keeps nothing: what is kept belongs to this one's gradients."""
        return TopKCompressor, (self.ratio,)

    def _kept(self, key, size: int):
        tf = _native.tensorflow()
        if key not in self.kept:
            with tf.init_scope():
                self.kept[key] = tf.Variable(tf.zeros([size]), trainable=False)
        return self.kept[key]

    def reduce(self, tensor, average: bool, key, gather):
        """Sums (or averages) a floating-point tensor over the ranks; see Int8Compressor.reduce().

        key tells gradients apart: what is kept belongs to one of them.

        Raises:
          ValueError: there is no key (a collective called by hand needs a name).
        """
        if key is None:
            raise ValueError(
                "Compression.topk keeps what it does not send for the next call with the same "
                "name; give the collective a name"
            )
        tf = _native.tensorflow()
        size = tensor.shape.num_elements()
        if not size:
            return tf.identity(tensor)
        kept = self._kept(key, size)
        total = tf.reshape(tf.cast(tensor, tf.float32), [-1]) + kept
        indices = tf.math.top_k(tf.abs(total), max(1, int(size * self.ratio)), sorted=False).indices
        values = tf.gather(total, indices)
        kept.assign(tf.tensor_scatter_nd_update(total, indices[:, None], tf.zeros_like(values)))
        indices, values = gather(indices), gather(values)
        # Rank by rank, in each of which no index occurs twice: the order of sums is fixed.
        result = tf.add_n(
            [tf.scatter_nd(i[:, None], v, [size]) for i, v in _pairs(indices, values)]
        )
        if average:
            result /= float(indices.shape[0])
        return tf.cast(tf.reshape(result, tf.shape(tensor)), tensor.dtype)


def check_compressor(compression) -> None:
    """Raises ValueError unless it has what a compressor needs."""
    if compression is TopKCompressor:
        raise ValueError(
            "Compression.topk wants the part of the elements that is sent: Compression.topk(0.01)"
        )
    pair = hasattr(compression, "compress") and hasattr(compression, "decompress")
    if not pair and not hasattr(compression, "reduce"):
        raise ValueError(
            f"compression={compression!r} is no compressor; give Compression.none, .fp16, .bf16, "
            ".int8 or .topk(ratio), or an object with compress(tensor) and decompress(tensor, "
            "context)"
        )


class Compression:
    """The compressors; any class or object with the same methods works as well."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = Int8Compressor
    topk = TopKCompressor  # of a ratio: Compression.topk(0.01)
