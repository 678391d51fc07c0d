"""Cuts data that all ranks have into consecutive parts, for evaluate() and predict()."""

from smddp_tf._src.graph.framework import tensorflow
from smddp_tf.keras import _order, _shard, _shard_sequence
from smddp_tf.keras._shard_sequence import SEQUENCE

tf = tensorflow()

_KERAS_BATCH = 32  # of arrays, unless batch_size says otherwise


class _Batches(SEQUENCE):
    """A range of consecutive batches of a PyDataset or Sequence."""

    def __init__(self, batches, start: int, stop: int) -> None:
        super().__init__(**_shard_sequence.options_of(batches))
        self.batches, self.start, self.stop = batches, start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, index: int):
        return self.batches[self.start + index]


def _count(data) -> int:
    """The number of batches, or of elements of arrays."""
    if isinstance(data, SEQUENCE):
        return len(data)
    if not isinstance(data, tf.data.Dataset):
        return _shard.count_of(data)
    count = int(data.cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        raise ValueError("the dataset is infinite; give steps=, the number of batches of all ranks")
    if count == tf.data.UNKNOWN_CARDINALITY:
        count = int(data.reduce(tf.constant(0, tf.int64), lambda n, *_: n + 1))
    return count


def _cut(data, start: int, stop: int):
    if isinstance(data, tf.data.Dataset):
        return data.skip(start).take(stop - start)
    if isinstance(data, SEQUENCE):
        return _Batches(data, start, stop)
    return _shard.rows_of(data, start, stop)


def _first(data, steps: int, batch_size):
    """The first batches of a dataset, and how many batches, or elements of arrays, they are."""
    if isinstance(data, tf.data.Dataset):
        data = data.take(steps)
        return data, _count(data)
    batches = isinstance(data, SEQUENCE)
    return data, min(_count(data), steps if batches else steps * (batch_size or _KERAS_BATCH))


def _check_order(data, process_set) -> None:
    """Rejects data that the ranks have in different orders. Collective over the set.

    Raises:
      ValueError: they do; raised on all ranks.
    """
    seeds = []
    if isinstance(data, tf.data.Dataset):
        within = _order.seeds_in_functions(data)
        seeds = _order.seeds_of(data) + within.shuffles + within.draws
        entries = _order.of_dataset(data)
    elif isinstance(data, SEQUENCE):
        entries = _order.of_sequence(data)
    else:
        entries = _order.of_arrays(_shard.leaves_of(data))
    _, lines = _order.agree({**entries, _order.SEEDS: seeds}, "order of data", process_set)
    if process_set.size() > 1 and (lines.pop(_order.SEEDS, None) is not None or None in seeds):
        raise ValueError(
            "the dataset is shuffled, in another order on each rank, or a filter() in it chooses "
            "at random, so the parts of the ranks would overlap; evaluate and predict without "
            "shuffle() (of Dataset.list_files() too), with a seed that is the same on all ranks, "
            "or hvd.shard() the data before and say sharded=True"
        )
    _order.refuse(lines, "hvd.evaluate or hvd.predict")


def local_slice(data, process_set, steps=None, batch_size=None):
    """Returns this rank's consecutive part of the data, and whether that part is its own.

    A rank without a part gets the first batch (or element), since Keras rejects empty data; its
    results are then discarded.

    Args:
      data: arrays, a tf.data.Dataset, or a PyDataset or Sequence.
      process_set: the ranks.
      steps: the number of batches at the beginning of the data that are divided; None for all.
      batch_size: of arrays; None for Keras's default.

    Raises:
      ValueError: the data is empty, or comes in another order on each rank.
    """
    _check_order(data, process_set)
    if steps is None:
        count = _count(data)
    else:
        data, count = _first(data, steps, batch_size)
    size, rank = process_set.size(), process_set.rank()
    if count == 0:
        raise ValueError("there is no data")
    start, stop = count * rank // size, count * (rank + 1) // size
    if start == stop:
        return _cut(data, 0, 1), False
    return _cut(data, start, stop), True
