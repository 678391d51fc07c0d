"""set_random_seed(): the same data and weights on all ranks, other dropout and augmentation."""

from __future__ import annotations

import functools
import importlib
import numbers
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from smddp_tf._src.collectives.variables import seed_of_rank
from smddp_tf._src.graph.datasets import seeds_of_datasets
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job import basics
from smddp_tf._src.job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf.keras import _order

tf = tensorflow()

_LARGEST = 2**32 - 1  # that NumPy takes
_OF_OPS = 2**31 - 1  # TensorFlow's seeds are less


def set_random_seed(seed: int, process_set: ProcessSet = global_process_set) -> int:
    """Seeds Python, NumPy, TensorFlow and Keras, as a job of several ranks needs it.

    Use it instead of keras.utils.set_random_seed(), after init() and before data and models are
    made. A run can then be repeated with the same number of ranks. All ranks of the process set
    must call it.

    The same on all ranks: Python's random and numpy.random; the weights that Keras's initializers
    make; the order of tf.data's shuffle() and sample_from_datasets(), also for any number of ranks.

    Another on each rank: TensorFlow's random ops without a seed; Keras's dropout, noise and random
    preprocessing layers without a seed, inside a model or in Dataset.map(); keras.random without a
    seed. Rank 0 has what one process would have. Augmentation by NumPy needs a generator of the
    rank's own: np.random.default_rng(hvd.set_random_seed(1)).

    A later call of tf.random.set_seed() or keras.utils.set_random_seed() with another number takes
    its place.

    Args:
      seed: from 0 to 2**32 - 1, the same on all ranks. Do not add the rank.
      process_set: the ranks that train together; must include this rank.

    Returns:
      A seed that is another one on each rank.

    Raises:
      ValueError: it is not such a number, or the ranks gave different ones; raised on all ranks.
      NotInitializedError: init() was not called.

    Examples:
      >>> own = hvd.set_random_seed(1)
      >>> noise = np.random.default_rng(own)  # differs by rank
      >>> order = np.random.permutation(4)  # the same on all ranks
    """
    check_process_set(process_set)
    _, lines = _order.agree({"seed": repr(seed)}, "set_random_seed", process_set)
    if lines:
        raise ValueError(
            f"set_random_seed() got different seeds ({lines['seed']}); give all ranks the same "
            "one: dropout and augmentation differ by rank all the same"
        )
    number = isinstance(seed, numbers.Integral) and not isinstance(seed, bool)
    if not number or not 0 <= seed <= _LARGEST:
        raise ValueError(f"seed={seed!r} is not an integer from 0 to {_LARGEST}")

    seed, rank = int(seed), basics.rank()
    own = seed
    if rank > 0:
        own = int(np.random.SeedSequence([seed, rank]).generate_state(1)[0])
    for seed_keras in _kerases():
        seed_keras(seed)
    tf.compat.v1.set_random_seed(own % _OF_OPS)
    seeds_of_datasets().use(own % _OF_OPS, seed)
    return own


def _kerases() -> list[Callable[[int], None]]:
    """set_random_seed() of each Keras that is loaded; its random layers are made to differ."""
    found: dict[Callable[[int], None], Any] = {}
    for keras in (tf.keras, sys.modules.get("keras"), sys.modules.get("tf_keras")):
        utils: Any = getattr(keras, "utils", None)
        if hasattr(utils, "set_random_seed"):
            found[utils.set_random_seed] = keras
    for keras in found.values():
        if hasattr(keras, "random"):
            _vary_keras3(keras.random.SeedGenerator)
        else:
            package = keras.layers.Layer.__module__.split(".")[0]
            _vary_keras2(importlib.import_module(f"{package}.src.backend").RandomGenerator)
    return list(found)


@functools.cache
def _vary_keras3(generator: Any) -> None:
    """Lets Keras 3's generators without a seed begin with another state on each rank."""
    init = generator.__init__

    @functools.wraps(init)
    def varied_init(self: Any, seed: Any = None, *args: Any, **options: Any) -> None:
        if seed is not None or not basics.is_initialized():
            init(self, seed, *args, **options)
            return
        # Drawn as Keras does, so that initializers, which draw there too, stay equal on all ranks.
        drawn = random.randint(1, int(1e9))
        init(self, seed_of_rank(drawn, basics.rank()), *args, **options)
        self._initial_seed = None  # what is saved has no seed

    generator.__init__ = varied_init


@functools.cache
def _vary_keras2(generator: Any) -> None:
    """Lets generators of tf_keras and Keras 2 without a seed differ by rank.

    Those of initializers are stateless, and stay equal. Those without a state use TensorFlow's
    random ops, which have the rank's seed.
    """
    create = generator._create_seed

    @functools.wraps(create)
    def varied_seed(self: Any, user_specified_seed: Any) -> Any:
        seed = create(self, user_specified_seed)
        varied = user_specified_seed is None and self._rng_type == self.RNG_STATEFUL
        return seed_of_rank(seed, basics.rank()) if varied and basics.is_initialized() else seed

    generator._create_seed = varied_seed
