"""Compression to 8 bits an element and a scale for each chunk."""

from smddp_tf._graph.framework import tensorflow


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
