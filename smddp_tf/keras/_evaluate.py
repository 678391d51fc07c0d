"""evaluate() and predict() that share the work among ranks and give all the same answer."""

from __future__ import annotations

from typing import Any

import numpy as np

from smddp_tf._collectives.objects import allgather_object
from smddp_tf._graph.framework import tensorflow
from smddp_tf._job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf.keras import _metrics, _shard, _shard_sequence

tf = tensorflow()


class _Batches(_shard_sequence.SEQUENCE):
    """Some consecutive batches of a PyDataset or Sequence."""

    def __init__(self, batches, start: int, stop: int) -> None:
        super().__init__(**_shard_sequence.options_of(batches))
        self.batches, self.start, self.stop = batches, start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, index: int):
        return self.batches[self.start + index]


def _count(data) -> int:
    """How many batches, or elements of arrays, there are."""
    if isinstance(data, _shard_sequence.SEQUENCE):
        return len(data)
    if not isinstance(data, tf.data.Dataset):
        return _shard.count_of(data)
    count = int(data.cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        raise ValueError("the dataset has no end; give dataset.take(steps)")
    if count == tf.data.UNKNOWN_CARDINALITY:
        count = int(data.reduce(tf.constant(0, tf.int64), lambda n, *_: n + 1))
    return count


def _cut(data, start: int, stop: int):
    if isinstance(data, tf.data.Dataset):
        return data.skip(start).take(stop - start)
    if isinstance(data, _shard_sequence.SEQUENCE):
        return _Batches(data, start, stop)
    return _shard.rows_of(data, start, stop)


def _own(data, process_set):
    """This rank's consecutive part of the data, and whether it has one.

    A rank without one gets the first element, for Keras wants some.

    Raises:
      ValueError: there are no data.
    """
    count, size, rank = _count(data), process_set.size(), process_set.rank()
    if count == 0:
        raise ValueError("there are no data")
    start, stop = count * rank // size, count * (rank + 1) // size
    if start == stop:
        return _cut(data, 0, 1), False
    return _cut(data, start, stop), True


def _arguments(x, y, sample_weight):
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
    **options: Any,
):
    """model.evaluate() with the work divided among ranks; all get the answer of all data.

    Metrics are those of all data, to the last element, not averages of the ranks' metrics; see
    MetricAverageCallback for metrics that cannot be joined. Collective: all ranks call it.

    Args:
      model: a compiled Keras model, equal on all ranks.
      x: all data, the same on all ranks: arrays, a batched tf.data.Dataset, a
        keras.utils.PyDataset or Sequence. Each rank evaluates a part. A dataset whose length is
        not known is read once more, to count its batches.
      y: targets, if x are arrays.
      sample_weight: weights, if x are arrays.
      batch_size: of each rank, if x are arrays.
      return_dict: as for model.evaluate().
      sharded: x is this rank's part already (of hvd.shard(), or from files of its own).
      process_set: the ranks that take part; must include this rank.
      **options: further arguments of model.evaluate(); verbose is 0 otherwise.

    Returns:
      What model.evaluate() returns, equal on all ranks.

    Raises:
      ValueError: there are no data, or a dataset without an end.
    """
    check_process_set(process_set)
    data, has_data = _arguments(x, y, sample_weight), True
    if not sharded:
        data, has_data = _own(data, process_set)
    if isinstance(data, tuple):
        options.update(y=data[1], sample_weight=data[2], batch_size=batch_size)
        data = data[0]
    logs = model.evaluate(data, return_dict=True, **{"verbose": 0, **options})
    if process_set.size() > 1:
        if not has_data:
            model.reset_metrics()
        results = _metrics.of_all_ranks(model, process_set)
        if not has_data:
            logs = {**logs, **{name: own for name, (own, _) in results.items() if name in logs}}
        _metrics.replace(logs, results)
        _metrics.average(logs, process_set)
    return logs if return_dict else _in_order(model, logs)


def _in_order(model, logs: dict):
    """The list, or number, that model.evaluate() returns."""
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
    **options: Any,
):
    """model.predict() with the work divided among ranks; all get the predictions of all data.

    Collective: all ranks call it.

    Args:
      model: a Keras model, equal on all ranks.
      x: as for evaluate().
      batch_size: of each rank, if x are arrays.
      sharded: x is this rank's part of hvd.shard(), not shuffled: of arrays, or a dataset that was
        batched afterwards.
      process_set: the ranks that take part; must include this rank.
      **options: further arguments of model.predict(); verbose is 0 otherwise.

    Returns:
      What model.predict() returns: arrays, or a nest of them, with one row for each element, in
      the order of the data. With sharded=True the elements that shard() dropped are missing, and
      those that it repeated stand again at the end.

    Raises:
      ValueError: there are no data, a dataset without an end, or parts of unequal length.
    """
    check_process_set(process_set)
    data, has_data = (x, True) if sharded else _own(x, process_set)
    if batch_size is not None:
        options["batch_size"] = batch_size
    outputs = model.predict(data, **{"verbose": 0, **options})
    if process_set.size() == 1:
        return outputs
    if not has_data:
        outputs = tf.nest.map_structure(lambda rows: rows[:0], outputs)
    parts = allgather_object(outputs, name="predictions", process_set=process_set)
    join = _interleaved if sharded else lambda *rows: np.concatenate(rows)
    return tf.nest.map_structure(join, *parts)


def _interleaved(*parts):
    """Undoes shard(): the first rows of all parts, then the second ones, and so on."""
    lengths = [len(part) for part in parts]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"the ranks' parts have {lengths} elements; hvd.shard() makes them equally long"
        )
    return np.stack(parts, axis=1).reshape(-1, *parts[0].shape[1:])
