"""The callback that broadcasts the initial state and checks that the ranks stay equal."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from smddp_tf._src.collectives.checks import check_root
from smddp_tf._src.collectives.variables import broadcast_
from smddp_tf._src.gradients.reduce import identity, kept_by_libraries, source_name
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf._src.state import share
from smddp_tf._src.state.variables import variables_only
from smddp_tf._src.types import Variable
from smddp_tf.keras import _batch_norm, _distribution, _order
from smddp_tf.keras._whole_state import require_same_step
from smddp_tf.keras.callbacks import _fit, _state
from smddp_tf.keras.callbacks._base import (
    Callback,
    fix_steps_per_execution,
    is_divided,
    listed,
    optimizers_of,
    training_state,
)
from smddp_tf.keras.callbacks._check import FirstUpdate

tf = tensorflow()


def _has_variables(model: Any) -> bool:
    """Whether the model and all its layers are built.

    A model without call() is never built itself, so its layers decide. A built model may still have
    layers that only its train step calls and builds.
    """
    layers = list(model._flatten_layers(include_self=False))
    if not all(layer.built for layer in layers):
        return False
    return model.built or (bool(layers) and type(model).call is tf.keras.Model.call)


def _trace(function: Callable[..., Any], *arguments: Any) -> None:
    """Creates the variables that a call would create, without computing anything."""
    specs = tf.nest.map_structure(tf.type_spec_from_value, arguments)
    # Not tf.init_scope(), which stops gradient tapes from recording.
    with tf.__internal__.eager_context.eager_mode():
        tf.function(function).get_concrete_function(*specs)


class BroadcastGlobalVariablesCallback(Callback):
    """Broadcasts the root's weights and optimizer state to all ranks before the first gradient.

    So it does with what layers keep besides variables (the vocabularies of lookups, boundaries, the
    means of Normalization). Preprocessing layers that were made with different arguments are an
    error, other layers a warning.

    So it does with tf.Variables among the attributes of the model and its layers, also in lists,
    dicts and tf.Modules, though Keras 3 does not count them as weights.

    If the model has unbuilt layers, its first step is traced with the shapes of the first batch, so
    that the variables exist before they are broadcast. Dropout seeds are made different on each
    rank. Of a model that it has broadcast before, the next fit() keeps each rank's state, and
    broadcasts what is new: added layers, a new optimizer's state. Every fit() warns if its first
    batch reduced no gradients, or if the ranks' weights differ after its first update; for repeated
    checks, use CheckRanksEqual.

    Put it first in the list: before validation and at the end of each epoch it averages the moving
    statistics of BatchNormalization over the ranks, so that later callbacks save the averages. With
    sync_every it also calls the optimizer's synchronize(), so that all ranks have equal weights.

    Args:
      root_rank: the rank to broadcast from, as numbered in the job.
      device: ignored, accepted for compatibility.
      local_variables: a variable that is not broadcast, as each rank has its own value, or several
        in a list. register_local_var() adds one.
      average_batch_normalization: False: do not average moving statistics. Required if only some
        ranks validate.
      process_set: the ranks that take part; must include this rank.
      synchronize: False: synchronize() optimizers with sync_every only at the end of training. For
        epochs of fewer steps than sync_every.

    Raises:
      ValueError: root_rank is not in the process set.
      smddp_tf.errors.RanksDifferError: raised when training begins: layers cannot take the root's
        state, or preprocessing layers have different arguments.
      RuntimeError: raised then: the state of an optimizer with shard_state=True was loaded on some
        ranks only.
    """

    def __init__(
        self,
        root_rank: int,
        device: str = "",
        local_variables: Variable | Iterable[Variable] | None = None,
        average_batch_normalization: bool = True,
        process_set: ProcessSet = global_process_set,
        synchronize: bool = True,
    ) -> None:
        super().__init__()
        del device
        self.synchronize = synchronize
        check_process_set(process_set)
        self.root_rank = check_root(root_rank, process_set)
        self.process_set = process_set
        self.local = {identity(variable) for variable in listed(local_variables)}
        self.average_batch_normalization = average_batch_normalization
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()  # those that were broadcast
        self._shared: dict[Any, Any] = {}  # the variables that were broadcast, weakly, by id
        self._first_update: FirstUpdate | None = None
        self._all_broadcast = False
        self._in_epoch = self._averaged = False

    def register_local_var(self, var: Variable) -> None:
        """Leaves a variable out of the broadcast, since each rank has its own value.

        Args:
          var: the variable; Horovod's name for it.

        Raises:
          ValueError: it was broadcast already, so this rank's own value is lost.
        """
        (variable,) = listed([var])
        if self._was_broadcast(variable):
            raise ValueError(
                f"variable {source_name(variable, 0)!r} was broadcast already, before the first "
                "gradient; register it before fit(), or give local_variables="
            )
        self.local.add(identity(variable))

    def set_model(self, model: Any) -> None:
        """Prepares a model that its first batch would build."""
        super().set_model(model)
        if model in self._models or self.process_set.size() == 1:
            return
        if not _has_variables(model):
            self._build_at_first_step(model)

    def _build_at_first_step(self, model: Any) -> None:
        original = model.train_step

        def train_step(data: Any) -> Any:
            if model not in self._models:
                self._build(model, original, data)
            return original(data)

        model.train_step = train_step

    def _build(self, model: Any, step: Any, data: Any) -> None:
        own_step = type(model).train_step is not tf.keras.Model.train_step
        try:
            if own_step:
                _trace(step, data)
            else:
                inputs = data[0] if isinstance(data, (list, tuple)) else data
                _trace(lambda x: model(x, training=True), inputs)
        except Exception as error:
            raise RuntimeError(
                "the model is not built, and tracing its first step, to have variables to "
                f"broadcast before the first gradient, failed: {error}. Build it before fit(): "
                "call it on a batch, or model.build(input_shape)"
            ) from error
        with tf.init_scope():
            self._synchronize(model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Broadcasts, if the variables exist."""
        del logs
        if self.process_set.size() == 1:
            return
        fix_steps_per_execution(self.model)
        _fit.look(self)
        if self.model in self._models:
            # Layers that were added or adapted, or an optimizer made, since the last fit().
            self._broadcast_state(self.model)
            self._all_broadcast = False
            self._first_update = FirstUpdate(self.model, self.local, self.process_set, again=True)
        elif _has_variables(self.model):
            self._synchronize(self.model)

    def _variables(self, model: Any) -> list[Variable]:
        variables = training_state(model)  # creates the optimizers' slots
        local = self._find_local(model)
        own = set(self.local)
        for optimizer in optimizers_of(model):
            own |= set(map(identity, _state.slots_of(optimizer, local)))
            own |= set(map(identity, _state.sums_of(optimizer)))

        def taken(variable: Variable) -> bool:
            return identity(variable) in own or self._was_broadcast(variable)

        return [variable for variable in variables if not taken(variable)]

    def _find_local(self, model: Any) -> list[Variable]:
        """The weights that are each rank's own.

        Libraries register theirs after the first batch, where Horovod broadcasts, or not at all.
        """
        weights = variables_only(model.weights)
        self.local |= kept_by_libraries(weights)
        return [weight for weight in weights if identity(weight) in self.local]

    def _was_broadcast(self, variable: Variable) -> bool:
        variable = getattr(variable, "_value", variable)
        known = self._shared.get(id(variable))  # an id may be used again, so compare
        return known is not None and known() is variable

    def _synchronize(self, model: Any) -> None:
        self._models.add(model)
        self._all_broadcast = False
        self._broadcast_state(model)
        self._first_update = FirstUpdate(model, self.local, self.process_set)

    def _broadcast_state(self, model: Any) -> None:
        """The variables, and before them what may replace some: vocabularies and the like."""
        for optimizer in filter(is_divided, optimizers_of(model)):
            require_same_step(optimizer)
        self._find_local(model)
        own = _state.local_weights(optimizers_of(model), variables_only(model.weights))
        layers = share.layers_of(model, self.local | set(map(identity, own)))
        share.send(layers, self.root_rank, self.process_set)
        self._broadcast(self._variables(model))
        share.refresh(layers)

    def _broadcast(self, variables: Any) -> None:
        broadcast_(variables, self.root_rank, "initial state", self.process_set)
        inner = [getattr(v, "_value", v) for v in variables]
        self._shared |= {id(variable): weakref.ref(variable) for variable in inner}

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Broadcasts variables created late, and checks that the first update was reduced."""
        super().on_train_batch_end(batch, logs)  # on_batch_end(), which scripts replace
        if self._first_update is None:
            return
        if not self._all_broadcast:
            # A built layer may still create variables in call().
            self._all_broadcast = True
            self._broadcast(self._variables(self.model))
        if self._first_update.look(batch):
            self._first_update = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Marks the moving statistics as not averaged: the epoch's batches will update them."""
        del epoch, logs
        self._in_epoch, self._averaged = True, False

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Averages moving statistics, so that validation in fit() uses those of all ranks."""
        del logs
        if self._in_epoch:
            self._agree()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Averages moving statistics, so that later callbacks save those of all ranks.

        Raises:
          smddp_tf.errors.RanksDifferError: the ranks ordered a PyDataset or Sequence differently.
        """
        del epoch, logs
        _order.Orders.check(self.process_set)
        self._agree()
        self._in_epoch = False

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Synchronizes weights, and ends what fit()'s errors would name as their cause."""
        del logs
        self._exchange()
        _fit.forget()

    def _exchange(self) -> None:
        """Ends the round of local steps of each optimizer with sync_every."""
        for optimizer in optimizers_of(self.model):
            distribution = _distribution.of(optimizer)
            if distribution is not None:
                distribution.synchronize()

    def _agree(self) -> None:
        """Makes equal what each rank has trained alone: weights and moving statistics."""
        if self._averaged:
            return
        if self.synchronize:
            self._exchange()
        if self.average_batch_normalization:
            _batch_norm.average_batch_normalization(self.model, self.process_set)
        self._averaged = True
