"""What ranks that train locally keep between two exchanges, besides their own weights.

It is a Keras layer, set as an attribute of the optimizer, so Keras writes it into its files. Who
loads them without this library does not notice.
"""

import functools
import importlib
from typing import Any

from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.types import LoadedClass
from smddp_tf.keras._distribution import own_variables

tf = tensorflow()


def fragments_of(sizes: list, count: int) -> list:
    """Divides variables into fragments of consecutive ones, of about as many bytes each.

    Args:
      sizes: the bytes of each variable.
      count: how many fragments.

    Returns:
      For each fragment the indices of its variables, at least one.

    Raises:
      ValueError: there are fewer variables.
    """
    if count > len(sizes):
        raise ValueError(
            f"fragments={count} is more than the {len(sizes)} variables that the optimizer "
            "updates; a fragment has at least one"
        )
    found: list = [[] for _ in range(count)]
    total, before, current = max(sum(sizes), 1), 0, 0
    for i, size in enumerate(sizes):
        left = len(sizes) - i
        full = (before + size / 2) * count > total * (current + 1)
        # So many variables are left as fragments without one.
        if found[current] and (full or left == count - current - 1):
            current = min(current + 1, count - 1)
        found[current].append(i)
        before += size
    return found


@functools.cache
def _kind(package: str) -> type:
    """The class for optimizers of this Keras, which its own files hold."""
    base: LoadedClass = importlib.import_module(f"{package}.layers").Layer

    class OuterState(base):
        """The weights of the last exchange, steps since then, and the outer optimizers."""

        def __init__(self, variables: list, fragments: list, make_optimizer: Any) -> None:
            super().__init__(name="outer_state", trainable=False, dtype="float32")
            self.anchors = [
                self.add_weight(
                    name=f"anchor_{i}",
                    shape=tuple(variable.shape),
                    dtype=variable.dtype,
                    initializer="zeros",
                    trainable=False,
                )
                for i, variable in enumerate(variables)
            ]
            # A list, as anchors and optimizers are: tf.train.Checkpoint sees all of them, or none
            # in Keras 3. The steps of a round without its anchors would be wrong.
            self.counters = [
                self.add_weight(
                    name="steps", shape=(), dtype="int64", initializer="zeros", trainable=False
                )
            ]
            self.outer_optimizers = [make_optimizer() for _ in fragments]
            for indices, optimizer in zip(fragments, self.outer_optimizers, strict=True):
                build = getattr(optimizer, "build", None) or optimizer._create_all_weights
                build([self.anchors[i] for i in indices])
            self.built = True

        @property
        def steps(self) -> Any:
            """How many steps there were since all weights were equal."""
            return self.counters[0]

        def load_own_variables(self, store: Any) -> None:
            """A file that was written without this state starts a new round from its weights."""
            if store.keys():
                super().load_own_variables(store)
                return
            self.steps.assign(0)
            for optimizer in self.outer_optimizers:
                for variable in own_variables(optimizer):
                    if tuple(variable.shape):  # not iterations and rates
                        variable.assign(tf.zeros_like(tf.convert_to_tensor(variable)))

    return OuterState


def make(package: str, variables: list, fragments: list, make_optimizer: Any) -> Any:
    """Makes the state of an optimizer: with `anchors`, `steps` and `outer_optimizers`.

    Args:
      package: the Keras of the optimizer.
      variables: what the optimizer updates.
      fragments: see fragments_of().
      make_optimizer: makes a new outer optimizer; each fragment has one.
    """
    with tf.init_scope():
        return _kind(package)(variables, fragments, make_optimizer)
