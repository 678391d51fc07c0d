"""Averages batch normalization's moving statistics, which each rank computes on its own batches."""

from __future__ import annotations

from typing import Any

from smddp_tf._src.collectives.allreduce import grouped_allreduce
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.graph.ops.ranks import is_alone
from smddp_tf._src.job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf._src.job.reduce_op import Average
from smddp_tf._src.types import Variable
from smddp_tf.keras._sync_batch_norm import SyncBatchNormalization

tf = tensorflow()

_STATISTICS = ("moving_mean", "moving_variance", "moving_stddev", "renorm_mean", "renorm_stddev")


def _moving_statistics(model: Any) -> list[Variable]:
    found = []
    for layer in model._flatten_layers():
        kinds = {kind.__name__ for kind in type(layer).__mro__}
        if "BatchNormalization" in kinds or "BatchNormalizationBase" in kinds:
            # SyncBatchNormalization's statistics are the same on all ranks.
            if not isinstance(layer, SyncBatchNormalization) and layer.built:
                found += [getattr(layer, name, None) for name in _STATISTICS]
    return [variable for variable in found if variable is not None]


def average_batch_normalization(model: Any, process_set: ProcessSet = global_process_set) -> int:
    """Averages the moving means and variances of BatchNormalization layers over the ranks.

    Each rank computes moving statistics from its own batches, so without averaging, the ranks'
    models differ slightly in evaluation, prediction and checkpoints.
    BroadcastGlobalVariablesCallback calls it; in a custom loop, call it before evaluating or
    saving. Has no effect without such layers.

    Args:
      model: a built Keras model, the same on all ranks.
      process_set: the ranks that take part; must include this rank.

    Returns:
      The number of variables that were averaged.

    Raises:
      tf.errors.FailedPreconditionError and others: same as allreduce().

    Examples:
      >>> model = tf.keras.Sequential([tf.keras.layers.BatchNormalization()])
      >>> model.build([None, 3])
      >>> averaged = hvd.average_batch_normalization(model)
    """
    group = check_process_set(process_set)
    variables = [] if is_alone(group) else _moving_statistics(model)
    if variables:
        values = [tf.convert_to_tensor(variable) for variable in variables]
        averages = grouped_allreduce(
            values, op=Average, name="batch normalization", process_set=process_set
        )
        for variable, average in zip(variables, averages, strict=True):
            variable.assign(average)
    return len(variables)
