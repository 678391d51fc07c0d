"""Compression to 8 bits per element, with a scale per chunk."""

from smddp_tf._graph.framework import tensorflow


class Int8Compressor:
    """Sends 8 bits per element, and a float32 scale per CHUNK elements.

    Each chunk is scaled so that its largest magnitude becomes 127. The error of an element of the
    sum is at most the sum over ranks of (the chunk's largest magnitude on that rank) / 254, plus
    float32 rounding. Sends about a quarter of the bytes of float32. A chunk that contains inf or
    nan becomes nan.
    """

    CHUNK = 256

    @classmethod
    def reduce(cls, tensor, average: bool, key, gather):
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
        tf = tensorflow()
        flat = tf.reshape(tf.cast(tensor, tf.float32), [-1])
        chunks = tf.reshape(tf.pad(flat, [[0, -flat.shape[0] % cls.CHUNK]]), [-1, cls.CHUNK])
        scales = tf.reduce_max(tf.abs(chunks), axis=1, keepdims=True) / 127.0
        codes = tf.cast(tf.round(tf.math.divide_no_nan(chunks, scales)), tf.int8)

        codes, scales = gather(codes), gather(scales)
        total = tf.add_n([tf.cast(c, tf.float32) * s for c, s in pairs_of(codes, scales)])
        if average:
            total /= float(codes.shape[0])
        flat = tf.reshape(total, [-1])[: flat.shape[0]]
        return tf.cast(tf.reshape(flat, tf.shape(tensor)), tensor.dtype)


def pairs_of(first, second):
    tf = tensorflow()
    return zip(tf.unstack(first), tf.unstack(second), strict=True)
