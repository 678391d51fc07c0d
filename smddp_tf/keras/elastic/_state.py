"""States of TensorFlow and Keras: what an elastic training needs to go on."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from smddp_tf._src.collectives.variables import broadcast_
from smddp_tf._src.elastic import state
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.state import share
from smddp_tf._src.types import Variable
from smddp_tf.keras.callbacks._base import divides_state, optimizers_of, training_state
from smddp_tf.keras.elastic._ranks import TensorFlowRanks

tf = tensorflow()


class State(state.State):
    """Base of the states: who derives from it says what save(), restore() and sync() do."""

    _ranks = TensorFlowRanks()


class ObjectState(State, state.ObjectState):
    """Python objects, as attributes.

    Args:
      **objects: names and initial values. They need to be copied and pickled.

    Raises:
      TypeError: a name that the state has already.
    """


class _VariableState(ObjectState):
    """Variables too."""

    def _variables(self) -> list[Variable]:
        raise NotImplementedError

    def save(self) -> None:
        """Remembers the state in memory."""
        # In host memory, where TensorFlow copies a variable no sooner than it is updated.
        with tf.device("/CPU:0"):
            self._saved = [(v, tf.identity(tf.convert_to_tensor(v))) for v in self._variables()]
        super().save()

    def restore(self) -> None:
        """Takes back all changes since the last save() or commit()."""
        for variable, value in self._saved:
            variable.assign(value)
        super().restore()

    def _send_kept(self) -> None:
        broadcast_(self._variables(), self._source, "elastic state")

    def _saved_values(self) -> tuple[list[str], Iterable[Any]]:
        names = [variable.name for variable, _ in self._saved]
        return names, (value.numpy() for _, value in self._saved)

    def _take_values(self, names: list[str], values: list[Any]) -> None:
        variables = self._variables()
        here = [(variable.name, tuple(variable.shape)) for variable in variables]
        there = [(n, v.shape) for n, v in zip(names, values, strict=True)]
        if [shape for _, shape in here] != [shape for _, shape in there]:
            odd = next(pair for pair in itertools.zip_longest(here, there) if pair[0] != pair[1])
            raise ValueError(
                f"the last commit has other variables than this state: {odd[1]} for {odd[0]}; "
                "go on with the script that made it, or remove its folder (SMDDP_COMMITS)"
            )
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


def _require_eager() -> None:
    if not tf.executing_eagerly():
        raise NotImplementedError("elastic states need eager execution; TF1 sessions have none")


class TensorFlowState(_VariableState):
    """Variables, and Python objects as attributes.

    Args:
      variables: tf.Variables or Keras variables.
      session: not supported, as there are no TF1 sessions in eager execution; must be None.
      **objects: same as for ObjectState.

    Raises:
      NotImplementedError: a session was given, or TensorFlow does not execute eagerly.
      ValueError: there are no variables.
    """

    def __init__(
        self, variables: Iterable[Variable] | None = None, session: Any = None, **objects: Any
    ) -> None:
        _require_eager()
        if session is not None:
            raise NotImplementedError("session=: elastic states need eager execution")
        self.variables = list(variables or [])
        if not self.variables:
            raise ValueError("variables= has to list what is to be saved; eager execution has none")
        super().__init__(**objects)

    def _variables(self) -> list[Variable]:
        return self.variables


class TensorFlowKerasState(_VariableState):
    """A Keras model with its optimizer, and Python objects as attributes.

    Args:
      model: a built model of Keras 3, tf_keras or Keras 2.
      optimizer: its optimizer, if the model is not compiled with it.
      backend: ignored, accepted for compatibility.
      **objects: same as for ObjectState; often ``epoch=0, batch=0``.

    Raises:
      NotImplementedError: TensorFlow does not execute eagerly.
      ValueError: the model is not built, or the optimizer's state is divided among the ranks.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **objects: Any
    ) -> None:
        _require_eager()
        del backend
        if not model.built:
            raise ValueError(
                "the model is not built, so it has no weights to save; call "
                "model.build(input_shape), or the model on a batch, before its state is made"
            )
        for one in [*optimizers_of(model), optimizer]:
            if one is not None and divides_state(one):
                raise ValueError(
                    "an elastic job cannot keep the state of an optimizer with shard_state=True: "
                    "a rank that is lost takes its part of it along"
                )
        self.model, self.optimizer = model, optimizer
        super().__init__(**objects)

    def _variables(self) -> list[Variable]:
        return training_state(self.model, self.optimizer)

    def _kept(self) -> dict[str, Any]:
        return share.state_of(share.layers_of(self.model))

    def _take(self, kept: dict[str, Any]) -> None:
        share.restore(share.layers_of(self.model), kept)

    def _send_kept(self) -> None:
        share.send(share.layers_of(self.model), self._source)
        super()._send_kept()


class KerasState(TensorFlowKerasState):
    """The name of TensorFlowKerasState in Horovod's Keras modules."""

    def __init__(self, model: Any, optimizer: Any = None, **objects: Any) -> None:
        super().__init__(model, optimizer, **objects)
