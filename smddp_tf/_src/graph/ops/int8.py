"""The arithmetic of Compression.int8: to 8 bits, and the sum of what the ranks made."""

from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.graph.ops.fused import fused

tf = tensorflow()

CHUNK = 256  # elements that have one scale


def _quantize(tensor):
    flat = tf.reshape(tf.cast(tensor, tf.float32), [-1])
    chunks = tf.reshape(tf.pad(flat, [[0, -flat.shape.num_elements() % CHUNK]]), [-1, CHUNK])
    # XLA's maximum may leave nan out.
    magnitudes = tf.where(tf.math.is_nan(chunks), float("inf"), tf.abs(chunks))
    scales = tf.reduce_max(magnitudes, axis=1, keepdims=True) / 127.0
    codes = tf.round(tf.math.divide_no_nan(chunks, scales))
    # Zeros where the scale is inf: the sum makes nan of them.
    codes = tf.where(tf.math.is_nan(codes), 0.0, tf.clip_by_value(codes, -127.0, 127.0))
    return tf.cast(codes, tf.int8), scales


def _sum(codes, scales, *, dtype, count, divisor):
    parts = zip(tf.unstack(codes), tf.unstack(scales), strict=True)
    total = tf.add_n([tf.cast(code, tf.float32) * scale for code, scale in parts])
    if divisor != 1:
        total /= float(divisor)
    return tf.cast(tf.reshape(total, [-1])[:count], dtype)


_emit_quantize = fused("int8_quantize", _quantize)
_emit_sum = fused("int8_sum", _sum)


def int8_quantize(tensor):
    """Returns int8 codes [chunks, CHUNK] and float32 scales [chunks, 1]."""
    codes, scales = _emit_quantize(tensor)
    chunks = -(-tensor.shape.num_elements() // CHUNK)
    codes.set_shape([chunks, CHUNK])
    scales.set_shape([chunks, 1])
    return codes, scales


def int8_sum(codes, scales, like, divisor: int):
    """Adds up, in order, what the ranks made of tensors of the dtype and shape of `like`.

    Args:
      codes: [ranks, chunks, CHUNK].
      scales: [ranks, chunks, 1].
      like: a tensor of static shape.
      divisor: of the sum.
    """
    count = like.shape.num_elements()
    total = _emit_sum(codes, scales, dtype=like.dtype, count=count, divisor=divisor)
    return tf.reshape(total, like.shape)
