"""Adasum, the adaptive summation of gradients.

Maleki et al., "Scaling Distributed Training with Adaptive Summation" (2020): two gradients are
combined as (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b, so orthogonal gradients are added and
parallel ones averaged. More than two are combined in a binary tree over the ranks; on a level with
an odd count the last one is passed on unchanged, so any number of ranks is supported.
"""

from collections.abc import Callable

from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.types import Tensor


def adasum(parts: Tensor, agree: Callable[[Tensor], Tensor]) -> Tensor:
    """Combines the ranks' tensors.

    Args:
      parts: a floating-point tensor of shape [ranks, ...], the same on all ranks.
      agree: broadcasts the first rank's value of a small float64 tensor. Elementwise arithmetic is
        the same on all ranks, but the summation order of a dot product may depend on the number of
        threads; with broadcast dot products the result is bitwise the same on all ranks.

    Returns:
      A tensor with the shape of one part and the dtype of parts. Dot products are computed in
      float64; 16-bit gradients are combined in float32 and rounded once.
    """
    tf = tensorflow()
    wide = parts.dtype if parts.dtype == tf.float64 else tf.float32
    level = [tf.cast(part, wide) for part in tf.unstack(parts)]

    while len(level) > 1:
        pairs = list(zip(level[::2], level[1::2], strict=False))
        products = agree(tf.stack([_products(a, b) for a, b in pairs]))

        combined = []
        for (a, b), (dot, norm_a, norm_b) in zip(
            pairs, (tf.unstack(row) for row in tf.unstack(products)), strict=True
        ):
            # divide_no_nan: a zero gradient has no direction, so the other one is kept unchanged.
            half = tf.constant(0.5, tf.float64)
            scale_a = 1.0 - half * tf.math.divide_no_nan(dot, norm_a)
            scale_b = 1.0 - half * tf.math.divide_no_nan(dot, norm_b)
            combined.append(tf.cast(scale_a, wide) * a + tf.cast(scale_b, wide) * b)
        level = combined + level[2 * len(pairs) :]
    return tf.cast(level[0], parts.dtype)


def _products(a: Tensor, b: Tensor) -> Tensor:
    tf = tensorflow()
    a, b = tf.cast(a, tf.float64), tf.cast(b, tf.float64)
    return tf.stack([tf.reduce_sum(a * b), tf.reduce_sum(a * a), tf.reduce_sum(b * b)])
