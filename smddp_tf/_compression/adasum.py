"""Adasum: a sum of gradients that do not undo each other.

Maleki et al., "Scaling Distributed Training with Adaptive Summation" (2020): two gradients are
combined as (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b, so orthogonal ones add up and parallel ones
average; more than two in a binary tree over the ranks. Where a level has an odd number the last one
goes on to the next level by itself, so any number of ranks will do.
"""

from smddp_tf._graph.framework import tensorflow


def adasum(parts, agree):
    """Combines the ranks' tensors.

    Args:
      parts: of shape [ranks, ...], of any floating dtype, the same on all ranks.
      agree: gives all ranks the first one's value of a small float64 tensor. Elementwise arithmetic
        is the same everywhere, but the order in which a dot product sums may depend on a machine's
        threads; agreed coefficients make the result the same bits on all ranks.

    Returns:
      A tensor of the shape of one part and of the dtype of parts. Dot products are summed in
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
            # A gradient of zeros adds nothing, and has no direction to be parallel to.
            half = tf.constant(0.5, tf.float64)
            scale_a = 1.0 - half * tf.math.divide_no_nan(dot, norm_a)
            scale_b = 1.0 - half * tf.math.divide_no_nan(dot, norm_b)
            combined.append(tf.cast(scale_a, wide) * a + tf.cast(scale_b, wide) * b)
        level = combined + level[2 * len(pairs) :]
    return tf.cast(level[0], parts.dtype)


def _products(a, b):
    tf = tensorflow()
    a, b = tf.cast(a, tf.float64), tf.cast(b, tf.float64)
    return tf.stack([tf.reduce_sum(a * b), tf.reduce_sum(a * a), tf.reduce_sum(b * b)])
