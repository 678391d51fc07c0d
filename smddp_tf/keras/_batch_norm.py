"""Batch normalization's moving statistics, which each rank gathers on its own batches."""

from __future__ import annotations

from typing import Any

from smddp_tf._collectives.allreduce import grouped_allreduce
from smddp_tf._graph.framework import tensorflow
from smddp_tf._job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf._job.reduce_op import Average
from smddp_tf.keras._sync_batch_norm import SyncBatchNormalization

tf = tensorflow()

_STATISTICS = ("moving_mean", "moving_variance", "moving_stddev", "renorm_mean", "renorm_stddev")


def _moving_statistics(model) -> list:
    found = []
    for layer in model._flatten_layers():
        kinds = {kind.__name__ for kind in type(layer).__mro__}
        if "BatchNormalization" in kinds or "BatchNormalizationBase" in kinds:
            # Those of SyncBatchNormalization are equal already.
            if not isinstance(layer, SyncBatchNormalization) and layer.built:
                found += [getattr(layer, name, None) for name in _STATISTICS]
    return [variable for variable in found if variable is not None]


def average_batch_normalization(model: Any, process_set: ProcessSet = global_process_set):
    """Makes the moving means and variances of BatchNormalization layers the ranks' averages.

    Each rank's are those of its own batches, so without this the ranks' models differ a little in
    evaluation, prediction and checkpoints. BroadcastGlobalVariablesCallback calls it; call it
    in a loop of your own before you evaluate or save. Without such layers nothing happens.

    Args:
      model: a Keras model, built, the same on all ranks.
      process_set: the ranks that take part; must include this rank.

    Returns:
      The number of variables that were averaged.

    Raises:
      tf.errors.FailedPreconditionError and others: same as allreduce().
    """
    check_process_set(process_set)
    variables = _moving_statistics(model) if process_set.size() > 1 else []
    if variables:
        values = [tf.convert_to_tensor(variable) for variable in variables]
        averages = grouped_allreduce(
            values, op=Average, name="batch normalization", process_set=process_set
        )
        for variable, average in zip(variables, averages, strict=True):
            variable.assign(average)
    return len(variables)
