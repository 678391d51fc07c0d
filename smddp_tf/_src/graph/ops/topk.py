"""The arithmetic of Compression.topk: selecting, and the sum of what the ranks selected."""

from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.graph.ops.fused import fused

tf = tensorflow()


def _select(tensor, kept, *, k):
    total = tf.reshape(tf.cast(tensor, tf.float32), [-1]) + kept
    magnitudes = tf.abs(total)
    magnitudes = tf.where(tf.math.is_nan(magnitudes), float("inf"), magnitudes)
    indices = tf.sort(tf.math.top_k(magnitudes, k, sorted=False).indices)
    values = tf.gather(total, indices)
    rest = tf.tensor_scatter_nd_update(total, indices[:, None], tf.zeros_like(values))
    return indices, values, rest


def _sum(indices, values, *, dtype, count, divisor):
    # Add rank by rank, for a fixed summation order: no index occurs twice within a rank.
    parts = zip(tf.unstack(indices), tf.unstack(values), strict=True)
    total = tf.add_n([tf.scatter_nd(i[:, None], v, [count]) for i, v in parts])
    if divisor != 1:
        total /= float(divisor)
    return tf.cast(total, dtype)


_emit_select = fused("topk_select", _select)
_emit_sum = fused("topk_sum", _sum)


def topk_select(tensor, kept, k: int):
    """Selects the k elements of tensor + kept, as float32, that are largest by magnitude.

    Of equal ones those with lower indices are selected; nan counts as inf.

    Args:
      tensor: of static shape.
      kept: float32, with the tensor's elements in one dimension.
      k: how many.

    Returns:
      (ascending int32 indices, float32 values, tensor + kept with zeros in their place).
    """
    indices, values, rest = _emit_select(tensor, kept, k=k)
    indices.set_shape([k])
    values.set_shape([k])
    rest.set_shape([tensor.shape.num_elements()])
    return indices, values, rest


def topk_sum(indices, values, like, divisor: int):
    """Adds up, in order, what the ranks selected of tensors of the dtype and shape of `like`.

    Args:
      indices: [ranks, k].
      values: [ranks, k].
      like: a tensor of static shape.
      divisor: of the sum.
    """
    count = like.shape.num_elements()
    total = _emit_sum(indices, values, dtype=like.dtype, count=count, divisor=divisor)
    return tf.reshape(total, like.shape)
