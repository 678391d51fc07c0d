"""What the hooks for divided state of both kinds of optimizers have in common."""

import functools
from collections.abc import Iterable
from typing import Any

from smddp_tf.keras import _distribution, _whole_state
from smddp_tf.keras._distribution import Hook, raw

# Their update of an element depends on that element's gradient and slots alone.
_ELEMENTWISE = frozenset(
    ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lion", "Nadam", "RMSprop", "SGD")
)


def is_elementwise(optimizer: Any) -> bool:
    """Whether the optimizer may update parts of variables: Keras's own classes, as they are."""
    kind = type(optimizer)
    return kind.__module__.split(".")[0] in ("keras", "tf_keras") and kind.__name__ in _ELEMENTWISE


def can_scatter(optimizer: Any) -> bool:
    """Whether what comes before an update looks at each element of a gradient alone."""
    return not (optimizer.clipnorm or optimizer.global_clipnorm)


def require_own(optimizer: Any, methods: Iterable[str], bases: Iterable[str]) -> None:
    """Rejects an optimizer that does not have the methods of Keras's base classes.

    Raises:
      ValueError: its class keeps its state or updates in a way of its own.
    """
    kind = type(optimizer)
    for method in methods:
        owner = next(one for one in kind.__mro__ if method in vars(one))
        if owner.__name__ not in bases:
            raise ValueError(
                f"shard_state=True cannot divide {kind.__name__}, which has its own "
                f"{method}(): divide the optimizers that it holds, or do without"
            )


class OfVariable(Hook):
    """A method that is asked about a piece and answers for its variable."""

    def __call__(self, variable):
        shards = self.distribution.shards
        return self.original(raw(shards.variables[shards.place(variable)]))


class ApplyWeightDecay(Hook):
    """Keras's first step of an update."""

    def __call__(self, variables):
        shards = self.distribution.shards
        shards.refresh(variables)
        self.begin()
        return self.original(shards.own_pieces(variables))

    def begin(self) -> None:
        """What else a step begins with, when pieces have this rank's weights."""


def hook_h5(module: Any) -> None:
    """Has Keras write .h5 files of whole_state(): it asks no method of the optimizer there."""
    if hasattr(module, "_smddp_hooked"):
        return
    save = module.save_optimizer_weights_to_hdf5_group

    @functools.wraps(save)
    def save_whole(group, optimizer):
        distribution, inner = _distribution.of(optimizer), _distribution.innermost(optimizer)
        if distribution is None or not distribution.is_divided:
            return save(group, optimizer)
        if inner is not optimizer:
            raise RuntimeError(
                "an optimizer with shard_state=True in a LossScaleOptimizer cannot be saved as "
                ".h5; save as .keras"
            )
        _whole_state.saved_variables(distribution)
        return save(group, distribution.whole)

    module._smddp_hooked = True
    module.save_optimizer_weights_to_hdf5_group = save_whole
