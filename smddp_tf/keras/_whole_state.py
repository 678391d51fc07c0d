"""Saves and loads the whole state of an optimizer that is divided among the ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from smddp_tf._src.collectives.alltoall import alltoall
from smddp_tf._src.collectives.checks import check_root
from smddp_tf._src.collectives.objects import allgather_object
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf.keras import _distribution
from smddp_tf.keras._distribution import Hook, ReductionState, raw

tf = tensorflow()

_RESTORE_BEFORE = (
    "to restore a tf.train.Checkpoint, restore the optimizer on every rank before it is wrapped"
)
_UNGATHERED = (
    "the state of this optimizer is divided among the ranks (shard_state=True), and this rank has "
    "only its part. Before rank 0 saves, all ranks must gather it: `with hvd.whole_state(optimizer)"
    ":` around what saves, or in fit() hvd.callbacks.GatherState() before the callback that does. "
    f"{_RESTORE_BEFORE[0].upper()}{_RESTORE_BEFORE[1:]}"
)
# Lists with something for each variable that are not slots, or not of a part of it.
_NOT_SLOTS = ("_variables", "_trainable_variables", "_accumulated_gradients")


def _slots(optimizer: Any) -> dict[int, int]:
    """The slots of variables: id() of the tf.Variable -> the place of its variable.

    Keras's updates find them by that place, in a list for each kind of slot.
    """
    count = len(_distribution.of(optimizer).shards.variables)
    lists = [
        value
        for name, value in vars(optimizer).items()
        if name not in _NOT_SLOTS and isinstance(value, (list, tuple)) and len(value) == count
    ]
    return {
        id(raw(slot)): i
        for slots in lists
        for i, slot in enumerate(slots)
        if hasattr(type(slot), "assign")
    }


def divided_slots(optimizer: Any) -> dict[int, int]:
    """Those of the slots that are of divided variables; see _slots()."""
    shards = _distribution.of(optimizer).shards
    return {key: i for key, i in _slots(optimizer).items() if shards.is_divided(i)}


def _unlisted(optimizer: Any) -> dict[str, Any]:
    """The variables in attributes that Keras does not list, by the attributes' names.

    Keras 3 lists none that build() makes inside a LossScaleOptimizer's, such as Nadam's product of
    momentums. A tf.train.Checkpoint has them, and a .keras file does not.
    """
    if not hasattr(optimizer, "_untrack_variable"):  # tf_keras, Keras 2
        return {}
    import keras

    listed = set(map(id, optimizer.variables))
    return {
        name: value
        for name, value in vars(optimizer).items()
        if isinstance(value, keras.Variable) and id(value) not in listed
    }


def _build_alike(optimizer: Any, variables: list[Any], unlisted: dict[str, Any]) -> None:
    """Builds an optimizer so that it has these _unlisted() variables, and assigns their values."""
    built: Any = optimizer
    if unlisted:
        import keras

        built = keras.optimizers.LossScaleOptimizer(optimizer)
    built.build(variables)
    for name, value in unlisted.items():
        getattr(optimizer, name).assign(value)


def require_known_slots(optimizer: Any) -> None:
    """Rejects an optimizer with variables of which nothing tells whose they are.

    Raises:
      ValueError: they could not be saved.
    """
    known = set(_slots(optimizer))
    known |= {id(raw(one)) for one in getattr(optimizer, "_accumulated_gradients", ())}
    for variable in optimizer.variables:
        if variable.shape.rank and id(raw(variable)) not in known:
            name = getattr(variable, "path", variable.name)
            raise ValueError(
                f"shard_state=True cannot divide {type(optimizer).__name__}: nothing tells which "
                f"weight its variable {name!r} belongs to. Keep slots in lists with one "
                "for each variable, in the order of build(), as Keras's optimizers do"
            )


def _gathered(optimizer: Any, shards: Any, root_rank: int) -> Any:
    """On the root, an undivided optimizer with the state of all ranks; elsewhere None."""
    shards.require_same_ranks()
    root = shards.process_set.ranks.index(root_rank)
    whole: Any = None
    if shards.rank == root:
        kind = type(optimizer)
        whole = kind.from_config(kind.get_config(optimizer))
        _build_alike(whole, list(shards.variables), _unlisted(optimizer))
    slots = divided_slots(optimizer)
    for k, own in enumerate(optimizer.variables):
        value, place = tf.convert_to_tensor(raw(own)), slots.get(id(raw(own)))
        if place is not None:
            flat = tf.reshape(value, [-1])[: None if shards.owns_some(place) else 0]
            count = flat.shape.num_elements()
            splits = [count if rank == root else 0 for rank in range(shards.ranks)]
            value, _ = alltoall(
                flat, splits, f"part of optimizer variable {k}", process_set=shards.process_set
            )
        if whole is not None:
            target = raw(whole.variables[k])
            target.assign(tf.reshape(value, target.shape))
    return whole


@contextlib.contextmanager
def whole_state(optimizer: Any, root_rank: int = 0) -> Iterator[Any]:
    """Gathers the state of an optimizer with shard_state=True on one rank, so that it can save.

    Collective: all ranks must enter it, and none may train inside. On the root, model.save(),
    save_weights() and tf.train.Checkpoint inside write the whole state, so a file does not know how
    it was made. The root needs memory for it until the end.

    Args:
      optimizer: one that DistributedOptimizer returned, or the LossScaleOptimizer around it.
      root_rank: the rank that saves, as numbered in the job.

    Yields:
      On the root an undivided optimizer with the whole state; elsewhere None. An optimizer whose
      state is not divided is yielded itself.

    Raises:
      TypeError: the optimizer is not distributed.
      RuntimeError: called inside a tf.function.
      ValueError: root_rank is not in the optimizer's process set.

    Examples:
      >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
      >>> optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.1))
      >>> model.compile(optimizer, loss="mse")
      >>> _ = model.fit(tf.ones([8, 2]), tf.ones([8, 1]), verbose=0)
      >>> with hvd.whole_state(optimizer):
      ...     if hvd.rank() == 0:
      ...         model.save("model.keras")
    """
    distribution = _distribution.of(optimizer)
    if distribution is None:
        raise TypeError(
            "whole_state() takes an optimizer that DistributedOptimizer returned, not "
            f"{optimizer!r}"
        )
    if not tf.executing_eagerly():
        raise RuntimeError(
            "whole_state() gathers when it is called; call it outside of tf.function"
        )
    inner = _distribution.innermost(optimizer)
    if not distribution.is_divided:
        yield optimizer
        return
    root_rank = check_root(root_rank, distribution.options.process_set)
    whole = _gathered(inner, distribution.shards, root_rank)
    distribution.whole = whole
    try:
        yield whole
    finally:
        distribution.whole = None


def saved_optimizer(distribution: ReductionState) -> Any:
    """An undivided optimizer with the state that a file is to have.

    Raises:
      RuntimeError: this rank has not gathered it.
    """
    if distribution.whole is None:
        raise RuntimeError(_UNGATHERED)
    return distribution.whole


def saved_variables(distribution: ReductionState) -> list[Any]:
    """The variables that a file is to have, in Keras's order; see saved_optimizer()."""
    return list(saved_optimizer(distribution).variables)


class SaveOwnVariables(Hook):
    """What Keras's files have of the optimizer."""

    def __call__(self, store: Any) -> Any:
        if not self.distribution.is_divided:
            return self.original(store)
        for i, variable in enumerate(saved_variables(self.distribution)):
            store[str(i)] = variable.numpy()
        return None


class LoadOwnVariables(Hook):
    """Takes this rank's part of what a file has; every rank reads it."""

    def __call__(self, store: Any) -> Any:
        if not self.distribution.is_divided or len(store.keys()) != len(self.optimizer.variables):
            return self.original(store)  # Keras warns
        return assign_parts(self.optimizer, [store[str(i)] for i in range(len(store.keys()))])


def assign_parts(optimizer: Any, values: list[Any]) -> None:
    """Assigns an optimizer's variables this rank's part of undivided values, in Keras's order."""
    shards, slots = _distribution.of(optimizer).shards, divided_slots(optimizer)
    for variable, value in zip(optimizer.variables, values, strict=True):
        place = slots.get(id(raw(variable)))
        if place is None or shards.owns_all(place):
            raw(variable).assign(value)
        elif shards.owns_some(place):
            raw(variable).assign(shards.rows(value[:], place))


class TrackableChildren(Hook):
    """What a tf.train.Checkpoint writes and restores."""

    def __call__(self, save_type: str = "checkpoint", **options: Any) -> Any:
        distribution = self.distribution
        if save_type != "checkpoint" or not self.distribution.is_divided:
            return self.original(save_type, **options)
        return saved_optimizer(distribution)._trackable_children(save_type, **options)


class LookupDependency(Hook):
    """What a tf.train.Checkpoint restores into; what whole_state() has gathered is thrown away."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.distribution.whole is not None:
            raise RuntimeError(
                f"hvd.whole_state() is for saving, and what is restored in it is lost: "
                f"{_RESTORE_BEFORE}"
            )
        return self.original(*args, **kwargs)


def divide_built(optimizer: Any) -> None:
    """Divides the state that an optimizer has already, as one that was loaded."""
    values = [variable.numpy() for variable in optimizer.variables]
    unlisted = {name: one.numpy() for name, one in _unlisted(optimizer).items()}
    variables = list(optimizer._trainable_variables)
    kind = type(optimizer)
    made_first = len(kind.from_config(kind.get_config(optimizer)).variables)
    for variable in optimizer.variables[made_first:]:
        optimizer._untrack_variable(variable)
    optimizer.built = False
    _build_alike(optimizer, variables, unlisted)
    optimizer.built = True
    assign_parts(optimizer, values)


def require_same_step(optimizer: Any) -> None:
    """Rejects ranks that have parts of different states, as when only one of them loaded a file.

    Collective over the optimizer's process set.

    Raises:
      RuntimeError: they do; raised on all ranks.
    """
    distribution = _distribution.of(optimizer)
    step = int(tf.convert_to_tensor(_distribution.innermost(optimizer)._iterations))
    process_set = distribution.options.process_set
    steps = allgather_object(step, name="steps of a divided optimizer", process_set=process_set)
    if len(set(steps)) > 1:
        raise RuntimeError(
            f"the ranks' optimizers have taken {steps} steps, and each has only its part of the "
            "state (shard_state=True): load a file on every rank, not on the root alone"
        )
