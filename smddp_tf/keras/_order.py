"""Whether the ranks read the same data in the same order, of which each then takes its part.

shard(), evaluate() and predict() compare, before they divide, what decides the order: the seeds of
a dataset's shuffles, samples of arrays, the index arrays of a PyDataset or Sequence. It costs one
small allgather. What Python code yields (Dataset.from_generator) cannot be compared so.
"""

from __future__ import annotations

import contextlib
import random
import weakref

import numpy as np

from smddp_tf._src.collectives.objects import allgather_object
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.graph.order import in_session
from smddp_tf._src.job import basics
from smddp_tf.errors import RanksDifferError
from smddp_tf.keras import _order_in_functions, _samples

tf = tensorflow()

_REMEDY = (
    "Call hvd.set_random_seed(seed), with one seed for all ranks, before data are shuffled or split"
)
SHUFFLED = (
    "each rank shuffles the dataset in another order (shuffle() without a seed; a rank's own seed "
    "of keras.utils.set_random_seed() or tf.random.set_seed(); Dataset.list_files()), so some "
    "elements would come twice in an epoch and others never. " + _REMEDY + "; or call shard() "
    "before shuffle(), or shard(shuffle=True)"
)
CHOSEN = (
    "each rank chooses other elements: a function of filter(), flat_map() or the like, or "
    "rejection_resample(), draws random numbers, which differ by rank, so some elements would come "
    "twice in an epoch and others never: call shard() before it, or draw with "
    "tf.random.stateless_uniform() and a seed that follows from the element's number (enumerate())"
)
# Labels of entries.
SEEDS, LAST_SEEDS = "seeds of shuffles", "seeds of the last shuffle"
DRAWS = "seeds of random numbers"
_SEED_NAMES = "_seed", "_seed2"  # of TensorFlow's datasets
_KEPT_EPOCHS = 4  # of the orders that a sequence had


def _walk(dataset) -> list:
    """The dataset and all those that it is made of, each once, the sources first."""
    found: dict = {}

    def visit(one):
        one = getattr(one, "_dataset", one)  # of a tf.compat.v1 dataset, which is around it
        if id(one) not in found:
            for source in one._inputs():
                visit(source)
            found[id(one)] = one

    visit(dataset)
    return list(found.values())


def seeds_of(dataset) -> list:
    """The seeds by which a dataset orders its elements; None for one that is random each time."""
    seeds = []
    sources = _walk(dataset)
    # Random numbers order elements where they choose among datasets; else they are elements.
    chooses = any("DirectedInterleave" in type(one).__name__ for one in sources)
    for one in sources:
        kind = type(one).__name__
        if "Shuffle" in kind or (chooses and "RandomDataset" in kind):
            own = [tf.get_static_value(getattr(one, name, None)) for name in _SEED_NAMES]
            known = None not in own and any(own)
            seeds.append(tuple(int(seed) for seed in own) if known else None)
    return seeds


def seeds_in_functions(dataset) -> _order_in_functions.Seeds:
    """Those by which the functions of a dataset order and choose its elements."""
    seeds = _order_in_functions.Seeds()
    for one in _walk(dataset):
        seeds.add(one)
    return seeds


def unordered(dataset) -> bool:
    """Whether elements come in the order in which threads finish."""
    if dataset.options().deterministic is False:
        return True
    return any(getattr(one, "_deterministic", None) == "false" for one in _walk(dataset))


def of_dataset(dataset) -> dict:
    """What must be equal of a dataset on all ranks: label -> value."""
    sources = _walk(dataset)
    kinds = [type(one).__name__ for one in sources]
    entries = {"kinds of datasets": kinds, "number of elements": int(dataset.cardinality())}
    for i, one in enumerate(sources):
        tensors = getattr(one, "_tensors", None)
        for k, tensor in enumerate(tensors if isinstance(tensors, (list, tuple)) else ()):
            label = f"tensor {k} of {type(one).__name__} {i}"
            entries[label] = _samples.sample(tensor)
    return entries


def of_arrays(leaves) -> dict:
    """What must be equal of arrays on all ranks."""
    return {f"array {i}": _samples.sample(leaf) for i, leaf in enumerate(leaves)}


def _columns_of(batches) -> dict:
    """The attributes of a PyDataset or Sequence that may be its data, or their order."""
    found: dict = {}
    for name, value in vars(batches).items():
        found |= _samples.columns(value, name, len(batches))
    return found


def of_sequence(batches) -> dict:
    """What must be equal of a PyDataset or Sequence on all ranks."""
    entries = {"class": type(batches).__name__, "number of batches": len(batches)}
    for path, column in _columns_of(batches).items():
        entries[f"attribute {path}"] = _samples.order_of(column) or _samples.sample(column)
    return entries


def agree(entries: dict, name: str, process_set, offer=None) -> tuple:
    """Compares what must be equal on all ranks of a set. All of them must call it.

    Inside tf.function nothing is compared, as nothing has a value there.

    Args:
      entries: label -> value: a text, a number, a sample or a digest, or a list of them.
      name: identifies the operation in messages.
      process_set: the ranks.
      offer: any small object.

    Returns:
      (the first rank's offer, {label: a line that says how the ranks differ}).
    """
    if process_set.size() == 1 or not (tf.executing_eagerly() or in_session()):
        return offer, {}
    digest = _samples.digest(sorted((label, _samples.digest(e)) for label, e in entries.items()))
    of_ranks = allgather_object((digest, offer), name=name, process_set=process_set)
    agreed = of_ranks[0][1]
    if all(other == digest for other, _ in of_ranks):
        return agreed, {}
    return agreed, _differences(entries, name, process_set)


def _differences(entries, name, process_set) -> dict:
    """A line for each entry that differs; of floating-point numbers, not only by rounding."""
    everybody = allgather_object(
        (basics.rank(), entries), name=f"{name}, in detail", process_set=process_set
    )
    first, reference = everybody[0]
    lines = {}
    for label in {label: None for _, theirs in everybody for label in theirs}:
        held = reference.get(label)
        off = [(r, e.get(label)) for r, e in everybody if not _samples.same(e.get(label), held)]
        if not off:
            continue
        rank, other = off[0]
        if isinstance(held, (int, str)) and isinstance(other, (int, str)):
            lines[label] = f"{label}: {held} on rank {first}, {other} on rank {rank}"
        else:
            ranks = ", ".join(str(rank) for rank, _ in off)
            lines[label] = f"{label} is not on rank {ranks} what it is on rank {first}"
    return lines


def refuse(lines: dict, what: str) -> None:
    """Raises if ranks differ.

    Raises:
      ValueError: they do; raised on all ranks.
    """
    if lines:
        shown = "; ".join([*list(lines.values())[:5], *(["and more"] if len(lines) > 5 else [])])
        raise ValueError(
            f"{what} divides data that all ranks have, but the ranks gave it different data "
            f"({shown}). {_REMEDY}; and give all data, not a rank's part"
        )


def seed_of_this_process() -> int:
    """A number that follows from the states of Python's and NumPy's random numbers; draws none."""
    _, words, *rest = np.random.get_state(legacy=True)
    return int(_samples.digest([repr(random.getstate()), words, *rest])[:8], 16)


@contextlib.contextmanager
def same_random_numbers(seed: int, epoch: int):
    """Lets Python's and NumPy's global random numbers follow from the seed and the epoch."""
    before = random.getstate(), np.random.get_state(legacy=True)
    own = int(_samples.digest([seed, epoch])[:8], 16)
    random.seed(own)
    np.random.seed(own)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


class Orders:
    """The orders that a PyDataset or Sequence had in its last epochs.

    Args:
      batches: the whole PyDataset or Sequence.
      process_set: the ranks that divide it. All of them must make their Orders in one order.
    """

    # By ranks of a set; dead ones stay, since garbage is collected when a rank likes.
    _all: dict = {}

    def __init__(self, batches, process_set) -> None:
        self.kind = type(batches).__name__
        self.epochs: dict = {}
        Orders._all.setdefault(tuple(process_set.ranks), []).append(weakref.ref(self))
        self.note(batches, 0)

    def note(self, batches, epoch: int) -> None:
        """Notes the order of an epoch, by which its index arrays and lists of files are."""
        found = {path: _samples.order_of(one) for path, one in _columns_of(batches).items()}
        self.epochs[epoch] = {path: order for path, order in found.items() if order is not None}
        self.epochs.pop(epoch - _KEPT_EPOCHS, None)

    @classmethod
    def check(cls, process_set) -> None:
        """Compares the orders of all epochs that all ranks still know. Collective over the set.

        Raises:
          RanksDifferError: ranks have the same elements in different orders; raised on all ranks.
        """
        known = cls._all.get(tuple(process_set.ranks))
        if not known or process_set.size() == 1:
            return
        alive = {i: one for i, ref in enumerate(known) if (one := ref()) is not None}
        own = {i: (one.kind, one.epochs) for i, one in alive.items()}
        of_ranks = allgather_object(own, name="orders of sequences", process_set=process_set)
        for i, (kind, epochs) in of_ranks[0].items():
            for epoch, columns in epochs.items():
                for path, order in columns.items():
                    others = [
                        theirs.get(i, (kind, {}))[1].get(epoch, {}).get(path) for theirs in of_ranks
                    ]
                    if _differ_in_order(order, others):
                        raise RanksDifferError(_other_order(kind, path, epoch))


def _differ_in_order(order, others) -> bool:
    """Whether all have the same elements, and not all in this order."""
    same_elements = all(other is not None and other[1] == order[1] for other in others)
    return same_elements and any(other[0] != order[0] for other in others)


def _other_order(kind, path, epoch) -> str:
    return (
        f"in epoch {epoch + 1} the ranks have the attribute {path} of {kind} in different orders, "
        "so they read some batches twice and others never. hvd.shard gives all ranks the same "
        "random numbers of Python's random and numpy.random in on_epoch_end(); a generator of its "
        "own (np.random.default_rng(), random.Random()) needs a seed that is the same on all ranks"
    )
