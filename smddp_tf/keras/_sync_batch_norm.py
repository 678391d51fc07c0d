"""Batch normalization with statistics computed over the batches of all ranks."""

from __future__ import annotations

from typing import Any

from smddp_tf._src.collectives.allreduce import allreduce
from smddp_tf._src.graph import xla
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.graph.ops.ranks import is_fixed, rank_in, set_is_alone, size_in
from smddp_tf._src.job.process_sets import (
    ProcessSet,
    check_process_set,
    global_process_set,
    require_process_set,
)
from smddp_tf._src.job.reduce_op import Sum
from smddp_tf._src.types import LoadedClass, Tensor

tf = tensorflow()


def _joined_moments(
    mean: Tensor, variance: Tensor, count: Tensor, process_set: ProcessSet
) -> tuple[Tensor, Tensor]:
    """Combines the ranks' means and variances into those of all samples.

    The ranks' (mean, variance, count) are gathered by an allreduce of a matrix that has only this
    rank's row set: a single differentiable reduction with a static shape, as XLA needs. They are
    combined as in Chan, Golub and LeVeque (1979), which avoids the cancellation of sums of squares.
    """
    # The mean of an empty batch is nan; replace it, since its weight of 0 would not cancel it.
    mean, variance = (tf.where(count > 0, m, tf.zeros_like(m)) for m in (mean, variance))
    group = check_process_set(process_set)
    if xla.inside_jit() and not is_fixed(group):
        return _joined_in_turn(mean, variance, count, process_set)
    channels = mean.shape.num_elements()
    own = tf.concat([tf.reshape(mean, [-1]), tf.reshape(variance, [-1]), [count]], 0)
    name = "batch statistics"
    at = tf.one_hot(rank_in(group, name), size_in(group, name), dtype=own.dtype)
    rows = allreduce(at[:, None] * own[None, :], op=Sum, name=name, process_set=process_set)
    means, variances, counts = tf.split(rows, [channels, channels, 1], axis=1)

    weights = counts / tf.maximum(tf.reduce_sum(counts), 1.0)
    joined = tf.reduce_sum(weights * means, 0)
    spread = tf.reduce_sum(weights * (variances + tf.square(means - joined)), 0)
    return tf.reshape(joined, tf.shape(mean)), tf.reshape(spread, tf.shape(variance))


def _joined_in_turn(
    mean: Tensor, variance: Tensor, count: Tensor, process_set: ProcessSet
) -> tuple[Tensor, Tensor]:
    """As _joined_moments(), where XLA compiles for any number of ranks: one sum after another."""

    def total(value: Tensor, what: str) -> Tensor:
        return allreduce(value, op=Sum, name=f"batch statistics, {what}", process_set=process_set)

    weight = count / tf.maximum(total(count, "count"), 1.0)
    joined = total(weight * mean, "mean")
    return joined, total(weight * (variance + tf.square(mean - joined)), "variance")


_Base: LoadedClass = tf.keras.layers.BatchNormalization
_LEGACY = hasattr(_Base, "_fused_batch_norm")


@tf.keras.utils.register_keras_serializable(package="smddp_tf")
class SyncBatchNormalization(_Base):
    """BatchNormalization over the batches of all ranks, with one reduction in each direction.

    Equivalent to BatchNormalization on the concatenated batch in one process, including gradients
    (with Average, as in DistributedOptimizer). Batch sizes may differ between ranks; some ranks may
    have an empty batch, but not all. In tf_keras it is equivalent to the layer with fused=False. A
    model that contains it can only be loaded with this library.

    Args:
      fused: must be False; accepted for compatibility.
      process_set: the ranks whose batches are combined. Not saved: a copied or loaded layer uses
        all ranks.
      **options: the arguments of tf.keras.layers.BatchNormalization.

    Raises:
      ValueError: fused=True, or process_set is not a ProcessSet.

    Examples:
      >>> layer = hvd.SyncBatchNormalization(momentum=0.9)
      >>> layer(tf.ones([8, 3]), training=True).shape
      TensorShape([8, 3])
    """

    def __init__(
        self,
        fused: bool = False,
        process_set: ProcessSet = global_process_set,
        **options: Any,
    ) -> None:
        if fused:
            raise ValueError("SyncBatchNormalization has no fused kernel; leave fused=False")
        require_process_set(process_set)
        super().__init__(**options, **({"fused": False} if _LEGACY else {}))
        self._process_set = process_set

    def _moments(self, inputs: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Runs Keras's computation on this rank's batch and combines the ranks' moments."""
        mean, variance = super()._moments(inputs, *args, **kwargs)
        check_process_set(self._process_set)
        if set_is_alone(self._process_set):
            return mean, variance

        # Keras 3 passes the mask as the only positional argument after inputs.
        mask = kwargs.get("mask", None if _LEGACY else args[0])
        dtype = tf.float64 if mean.dtype == tf.float64 else tf.float32
        if mask is not None:
            count = tf.reduce_sum(tf.cast(mask, dtype))
        else:
            count = tf.cast(tf.size(inputs) // mean.shape.num_elements(), dtype)
        joined = _joined_moments(
            tf.cast(mean, dtype), tf.cast(variance, dtype), count, self._process_set
        )
        return tuple(tf.cast(moment, mean.dtype) for moment in joined)
