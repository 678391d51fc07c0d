"""Base classes of the callbacks, and access to a model's optimizers and their variables."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from smddp_tf._src.collectives.variables import is_movable, is_seed
from smddp_tf._src.gradients.options import whole_number
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job import basics
from smddp_tf._src.job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf._src.state.variables import untracked_variables, variables_only
from smddp_tf._src.types import LoadedClass, Variable
from smddp_tf.keras import _distribution, _whole_state

tf = tensorflow()


class _ForEitherKeras:
    """Mixin of callbacks that also work in tf_keras when TensorFlow's own Keras is Keras 3."""

    _supports_tf_logs = False

    def _overrides(self, *methods: str) -> bool:
        return any(
            getattr(type(self), method) is not getattr(tf.keras.callbacks.Callback, method)
            for method in methods
        )

    # tf_keras calls these; Keras 3's base class does not have them.
    def _implements_train_batch_hooks(self) -> bool:
        return self._overrides("on_train_batch_begin", "on_train_batch_end")

    def _implements_test_batch_hooks(self) -> bool:
        return self._overrides("on_test_batch_begin", "on_test_batch_end")

    def _implements_predict_batch_hooks(self) -> bool:
        return self._overrides("on_predict_batch_begin", "on_predict_batch_end")


_Base: LoadedClass = tf.keras.callbacks.Callback


class Callback(_ForEitherKeras, _Base):
    """Base of this library's own callbacks."""


class OnProcessSet(_ForEitherKeras):
    """Mixin that adds the process_set argument to a callback of Keras's."""

    def __init__(
        self, *args: Any, process_set: ProcessSet = global_process_set, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        check_process_set(process_set)
        self.process_set = process_set


def listed(variables: Variable | Iterable[Variable] | None) -> list[Variable]:
    """One variable, or several, as a list.

    Raises:
      TypeError: something among them is no variable. Iterating over a variable itself would give
        its rows, which are none.
    """
    if hasattr(variables, "assign"):
        return [variables]
    if variables is not None and not isinstance(variables, Iterable):
        variables = [variables]
    found = [] if variables is None else list(variables)
    for one in found:
        if not hasattr(one, "assign"):
            raise TypeError(
                f"local_variables takes variables, not {one!r}; of a layer give layer.weights"
            )
    return found


def epoch_or_batches(name: str, value: Any) -> str | int:
    """Validates an argument that says when a callback acts.

    Raises:
      TypeError, ValueError: value is neither "epoch" nor a positive integer.
    """
    if isinstance(value, str) and value == "epoch":
        return value
    try:
        return whole_number(name, value, 1)
    except (TypeError, ValueError) as error:
        problem = f'{name}={value!r} is neither "epoch" nor a number of batches >= 1'
        raise type(error)(problem) from None


class Every:
    """When a callback has to act: after each epoch, or after so many batches.

    Args:
      name: of the argument, for messages.
      value: "epoch", or a number of batches.

    Raises:
      TypeError, ValueError: value is neither "epoch" nor a positive integer.
    """

    def __init__(self, name: str, value: str | int) -> None:
        when = epoch_or_batches(name, value)
        self.epoch, self.batches = when == "epoch", 0 if isinstance(when, str) else when
        self._seen, self._last = 0, -1  # batches since it acted; the number of the last one

    def begin(self) -> None:
        """Counts from 0."""
        self._seen, self._last = 0, -1

    def after_batch(self, batch: int) -> bool:
        """Whether it acts after this batch, the last of those that were executed at once."""
        self._seen += batch - self._last if batch > self._last else batch + 1
        self._last = batch
        if self.epoch or self._seen < self.batches:
            return False
        self._seen = 0
        return True


def fix_steps_per_execution(model: Any) -> None:
    """Ends Keras 2's steps_per_execution="auto", which chooses another number on each rank.

    Callbacks would be called after other batches there: other learning rates, and hangs.
    """
    # In this order: schedules work without init() too.
    if not getattr(model, "autotune_steps_per_execution", False) or basics.size() == 1:
        return
    model.autotune_steps_per_execution = False
    model._steps_per_execution.assign(1)
    warnings.warn(
        'steps_per_execution="auto" would choose another number on each rank, so it is 1; give '
        "compile() a number",
        RuntimeWarning,
        stacklevel=3,
    )


def optimizers_of(model: Any) -> list[Any]:
    """The model's optimizer and other distributed ones among its attributes (as in a GAN)."""
    found = [model.optimizer] if getattr(model, "optimizer", None) is not None else []
    for value in vars(model).values():
        known = any(value is other for other in found)
        if not known and _distribution.of(value) is not None and hasattr(value, "variables"):
            found.append(value)
    return found


def _updated(optimizer: Any, seen: Any = ()) -> Iterator[Variable]:
    """The variables among an optimizer's attributes, and among those of optimizers that it holds.

    tf_keras and Keras 2 leave some out of `variables`: the learning rate and other hyperparameters,
    and Nadam's product of momenta.
    """
    own, seen = vars(optimizer), (*seen, optimizer)
    values = {**own, **own.get("_hyper", {})}  # the hyperparameters of legacy optimizers
    for _, value in sorted(values.items()):
        several = isinstance(value, (list, tuple))
        for one in value if several else [value]:
            if hasattr(type(one), "apply_gradients") and all(one is not other for other in seen):
                yield from _updated(one, seen)
            elif hasattr(type(one), "assign") and not several:  # slots, and the model's variables
                yield one


def divides_state(optimizer: Any) -> bool:
    """Whether the optimizer was wrapped with shard_state=True."""
    distribution = _distribution.of(optimizer)
    return distribution is not None and distribution.shard_state


def is_divided(optimizer: Any) -> bool:
    """Whether the ranks have divided the optimizer's state, and this one has its part of it."""
    distribution = _distribution.of(optimizer)
    return distribution is not None and distribution.is_divided


def variables_of(optimizer: Any, divided: bool = False) -> list[Variable]:
    """All variables of an optimizer, including hyperparameters and a dynamic loss scale.

    With sync_every also those that ranks keep between exchanges; with shard_state=True without the
    slots that they have divided, which are other ones on each, unless `divided`.
    """
    found = _distribution.own_variables(optimizer)
    # tf_keras keeps the dynamic loss scale outside `variables`.
    scale = getattr(optimizer, "_loss_scale", None)
    more = [getattr(scale, name, None) for name in ("_current_loss_scale", "_counter")]
    more += _updated(_distribution.innermost(optimizer))
    distribution = _distribution.of(optimizer)
    more += [] if distribution is None else distribution.state_variables()
    known = {id(getattr(one, "_value", one)) for one in found}
    for variable in more:
        if variable is not None and id(getattr(variable, "_value", variable)) not in known:
            known.add(id(getattr(variable, "_value", variable)))
            found.append(variable)
    if is_divided(optimizer) and not divided:
        slots = _whole_state.divided_slots(_distribution.innermost(optimizer))
        found = [one for one in found if id(getattr(one, "_value", one)) not in slots]
    return found


def build(optimizer: Any, variables: Any) -> None:
    """Creates the optimizer's variables, if it has not created them yet."""
    distribution = _distribution.of(optimizer)
    if distribution is not None and tf.executing_eagerly():
        distribution.ensure_state(optimizer, variables)
    if getattr(optimizer, "built", False) or getattr(optimizer, "_built", False):
        return
    make = getattr(optimizer, "build", None) or getattr(optimizer, "_create_all_weights", None)
    if make is None:
        return
    make(variables)
    if hasattr(optimizer, "built"):
        optimizer.built = True


def training_state(model: Any, optimizer: Any = None, divided: bool = False) -> list[Variable]:
    """The variables that a training goes on from, each once.

    They are the model's weights, the tf.Variables that Keras does not count as such, the variables
    of its optimizers, which are created if need be, and of `optimizer`, and the states of random
    generators. What cannot be sent is left out, such as handles of other resources; so are slots
    that ranks have divided, unless `divided`.
    """
    variables = [*variables_only(model.weights), *untracked_variables(model)]
    if getattr(model, "optimizer", None) is not None:
        build(model.optimizer, model.trainable_variables)
    if optimizer is not None:
        build(optimizer, model.trainable_variables)
    more = [] if optimizer is None else [optimizer]
    for one in [*optimizers_of(model), *more]:
        variables += variables_of(one, divided)
    variables += [v for v in variables_only(model.variables) if is_seed(v)]
    once = {id(getattr(v, "_value", v)): v for v in variables}
    return [variable for variable in once.values() if is_movable(variable)]
