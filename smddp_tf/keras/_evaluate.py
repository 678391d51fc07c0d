"""evaluate() and predict(): divide the data among ranks and return the same result on all."""

from __future__ import annotations

from typing import Any

import numpy as np

from smddp_tf._src.collectives.objects import allgather_object
from smddp_tf._src.gradients.options import whole_number
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf.keras import _metrics, _shard_sequence
from smddp_tf.keras._part import local_slice
from smddp_tf.keras.callbacks import MetricAverageCallback

tf = tensorflow()


def _arguments(x: Any, y: Any, sample_weight: Any) -> Any:
    if isinstance(x, (tf.data.Dataset, _shard_sequence.SEQUENCE)):
        if y is not None or sample_weight is not None:
            raise ValueError("y and sample_weight must be in the dataset, not beside it")
        return x
    return x, y, sample_weight


def evaluate(
    model: Any,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    batch_size: int | None = None,
    return_dict: bool = False,
    sharded: bool = False,
    process_set: ProcessSet = global_process_set,
    steps: int | None = None,
    **options: Any,
) -> Any:
    """model.evaluate() with the data divided among ranks; every rank gets the overall result.

    Metrics are computed over all elements, not averaged over the ranks; see MetricAverageCallback
    for metrics whose state cannot be reduced. Collective: all ranks must call it.

    Args:
      model: a compiled Keras model, equal on all ranks.
      x: all data, the same on all ranks: arrays, a batched tf.data.Dataset, or a
        keras.utils.PyDataset or Sequence. Each rank evaluates a part. A dataset of unknown length
        is read twice, the first time to count its batches. All ranks must get its elements in one
        order: with shuffle() only by equal seeds.
      y: targets, if x holds arrays.
      sample_weight: sample weights, if x holds arrays.
      batch_size: batch size of each rank, if x holds arrays.
      return_dict: same as for model.evaluate().
      sharded: x is already this rank's part (from hvd.shard(), or from the rank's own files).
      process_set: the ranks that take part; must include this rank.
      steps: evaluate that many batches of x, which the ranks divide; an infinite dataset needs it.
        With sharded=True, that many of each rank.
      **options: further arguments of model.evaluate(); verbose defaults to 0.

    Returns:
      The same as model.evaluate(), equal on all ranks.

    Raises:
      ValueError: the data is empty; the dataset is infinite and steps is not given, or shuffled in
        another order on each rank.
      TypeError: steps is not a whole number.

    Examples:
      >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")])
      >>> model.compile(loss="mse")
      >>> float(hvd.evaluate(model, np.ones([8, 2]), np.ones([8, 1])))
      1.0
    """
    group = check_process_set(process_set)
    steps = None if steps is None else whole_number("steps", steps, 1)
    data, has_data = _arguments(x, y, sample_weight), True
    if not sharded:
        data, has_data = local_slice(data, process_set, steps, batch_size)
    elif steps is not None:  # an evaluate() of the script's own may not take it
        options["steps"] = steps

    if isinstance(data, tuple):
        options.update(y=data[1], sample_weight=data[2], batch_size=batch_size)
        data = data[0]
    if isinstance(options.get("callbacks"), (list, tuple, MetricAverageCallback)):
        # What that joins has the batch of a rank without data in it.
        given = tf.nest.flatten(options["callbacks"])
        options["callbacks"] = [c for c in given if not isinstance(c, MetricAverageCallback)]
    logs = model.evaluate(data, return_dict=True, **{"verbose": 0, **options})

    if group.size > 1:
        if not has_data:
            model.reset_metrics()
        results = _metrics.of_all_ranks(model, process_set)
        if not has_data:
            logs = {**logs, **{name: own for name, (own, _) in results.items() if name in logs}}
        _metrics.replace(logs, results)
        _metrics.average(logs, process_set)
    return logs if return_dict else _in_order(model, logs)


def _in_order(model: Any, logs: dict[str, Any]) -> Any:
    """Converts logs to the list or number that model.evaluate() returns."""
    if hasattr(model, "_flatten_metrics_in_order"):
        return model._flatten_metrics_in_order(logs)
    names = [name for name in model.metrics_names if name in logs]
    values = [logs[name] for name in names + sorted(set(logs) - set(names))]
    return values[0] if len(values) == 1 else values


def predict(
    model: Any,
    x: Any,
    batch_size: int | None = None,
    sharded: bool = False,
    process_set: ProcessSet = global_process_set,
    steps: int | None = None,
    **options: Any,
) -> Any:
    """model.predict() with the data divided among ranks; every rank gets all predictions.

    Collective: all ranks must call it.

    Args:
      model: a Keras model, equal on all ranks.
      x: same as for evaluate().
      batch_size: batch size of each rank, if x holds arrays.
      sharded: x is already this rank's part, from hvd.shard() without shuffling: arrays, or a
        dataset that was batched after shard().
      process_set: the ranks that take part; must include this rank.
      steps: same as for evaluate().
      **options: further arguments of model.predict(); verbose defaults to 0.

    Returns:
      The same as model.predict(): arrays, ragged or sparse tensors, or a nest of them, with one row
      per element, in the order of the data. With sharded=True, elements that shard() dropped are
      missing, and elements that it repeated appear again at the end.

    Raises:
      ValueError: as evaluate(); or with sharded=True the ranks' parts differ in length.
      TypeError: steps is not a whole number.

    Examples:
      >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")])
      >>> hvd.predict(model, np.ones([8, 2])).shape  # all rows, on every rank
      (8, 1)
    """
    check_process_set(process_set)
    steps = None if steps is None else whole_number("steps", steps, 1)
    data, has_data = x, True
    if not sharded:
        data, has_data = local_slice(x, process_set, steps, batch_size)
    elif steps is not None:
        options["steps"] = steps
    if batch_size is not None:
        options["batch_size"] = batch_size
    outputs = model.predict(data, **{"verbose": 0, **options})
    if process_set.size() == 1:
        return outputs

    if not has_data:
        outputs = tf.nest.map_structure(_no_rows, outputs)
    parts = allgather_object(outputs, name="predictions", process_set=process_set)
    return tf.nest.map_structure(_interleaved if sharded else _joined, *parts)


def _no_rows(rows: Any) -> Any:
    if isinstance(rows, tf.SparseTensor):
        shape = tf.concat([[0], rows.dense_shape[1:]], 0)
        return tf.sparse.slice(rows, tf.zeros_like(shape), shape)
    return rows[:0]


def _joined(*parts: Any) -> Any:
    """The parts' rows: those of the first one first."""
    if isinstance(parts[0], tf.RaggedTensor):
        return tf.concat(parts, 0)
    if isinstance(parts[0], tf.SparseTensor):
        return tf.sparse.concat(0, list(parts), expand_nonconcat_dims=True)
    return np.concatenate(parts)


def _interleaved(*parts: Any) -> Any:
    """Restores the order before shard() by interleaving the rows of the parts."""
    lengths = [int(part.shape[0]) for part in parts]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"the ranks' parts have {lengths} elements; hvd.shard() makes them equally long"
        )
    rows = _joined(*parts)
    before = np.arange(len(parts) * lengths[0])  # the places of the rows before shard()
    if not isinstance(rows, tf.SparseTensor):
        order = before.reshape(len(parts), -1).T.ravel()
        return tf.gather(rows, order) if isinstance(rows, tf.RaggedTensor) else rows[order]
    places = before.reshape(-1, len(parts)).T.ravel()
    moved = tf.gather(places, rows.indices[:, :1])
    indices = tf.concat([moved, rows.indices[:, 1:]], 1)
    return tf.sparse.reorder(tf.SparseTensor(indices, rows.values, rows.dense_shape))
