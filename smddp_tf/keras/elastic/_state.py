"""States: the variables and objects that a training needs to go on."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable
from typing import Any

from smddp_tf._src.collectives.allreduce import allreduce
from smddp_tf._src.collectives.objects import broadcast_object
from smddp_tf._src.collectives.variables import broadcast_
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job import basics, rendezvous
from smddp_tf._src.job.reduce_op import Max
from smddp_tf._src.state import share
from smddp_tf._src.types import Variable
from smddp_tf.errors import HostsUpdatedInterrupt
from smddp_tf.keras.callbacks._base import divides_state, optimizers_of, training_state
from smddp_tf.keras.elastic._commits import Commit, Commits

tf = tensorflow()
_KEPT = "layers, besides variables"  # among a commit's objects; no attribute has such a name
_NUMBERS = itertools.count()  # scripts make their states in the same order each time


class State:
    """Base of the states: who derives from it says what save(), restore() and sync() do."""

    def __init__(self) -> None:
        self._reset_callbacks: list[Any] = []
        self.counters: list[Any] = []  # callbacks that keep attributes up to date
        self.commits = 0  # how many there were, in earlier processes of the job too
        self.source = 0  # the rank whose state sync() gives to all

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Adds functions that run() calls when the ranks have changed, or the job has restarted.

        They adapt what depends on the number of ranks, such as a learning rate. In an elastic job
        their collectives are those of one rank: ranks that have just joined do not call them.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Calls reset() and the functions of register_reset_callbacks(), in their order."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def reset(self) -> None:
        """For who derives from this: called before the reset callbacks."""

    def commit(self) -> None:
        """Same as save(), and check_host_updates()."""
        self.save()
        self.commits += 1
        self._write()
        self.check_host_updates()

    def _write(self) -> None:
        """Keeps what was saved where it outlives the job, if that is asked for."""

    def check_host_updates(self) -> None:
        """Lets ranks join or leave an elastic job here. Collective: all ranks call it together.

        Raises:
          HostsUpdatedInterrupt: some are to. It is raised on all ranks; run() handles it.
        """
        if not rendezvous.is_elastic() or not basics.is_initialized():
            return
        own = tf.constant(int(rendezvous.connection().is_updated()))
        if int(allreduce(own, op=Max, name="elastic updates")):
            raise HostsUpdatedInterrupt("ranks are to join or to leave this job")

    def save(self) -> None:
        """Remembers the state in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Takes back all changes since the last save() or commit()."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all ranks the state of rank 0."""
        raise NotImplementedError

    def is_kept(self) -> bool:
        """Whether commits outlive the job."""
        return True

    def resume(self) -> bool:
        """On rank 0, takes up the commit of the job before; returns whether there was one."""
        return False

    def finish(self) -> None:
        """Forgets the commit: the training has ended well."""


class ObjectState(State):
    """Python objects, as attributes.

    Args:
      **objects: names and initial values. They need to be copied and pickled.

    Raises:
      TypeError: a name that the state has already.
    """

    def __init__(self, **objects: Any) -> None:
        super().__init__()
        for name in objects:
            if hasattr(self, name):
                raise TypeError(f"{name}= cannot be an attribute of a state, which has that name")
        self._names = list(objects)
        self._set(objects)
        self._commits = Commits(next(_NUMBERS))
        self.save()

    def _variables(self) -> list[Variable]:
        """The variables that belong to the state."""
        return []

    def _kept(self) -> dict[str, Any]:
        """What belongs to the state besides variables and objects."""
        return {}

    def _take(self, kept: dict[str, Any]) -> None:
        """Goes back to what _kept() returned."""

    def _send_kept(self) -> None:
        """Gives all ranks that of the rank `source`."""

    def _set(self, objects: dict[str, Any]) -> None:
        for name, value in objects.items():
            setattr(self, name, copy.deepcopy(value))

    def _objects(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}

    def save(self) -> None:
        """Remembers the state in memory."""
        # In host memory, where TensorFlow copies a variable no sooner than it is updated.
        with tf.device("/CPU:0"):
            self._saved = [(v, tf.identity(tf.convert_to_tensor(v))) for v in self._variables()]
        self._saved_objects = copy.deepcopy(self._objects())
        self._saved_kept = self._kept()

    def restore(self) -> None:
        """Takes back all changes since the last save() or commit()."""
        for variable, value in self._saved:
            variable.assign(value)
        self._take(self._saved_kept)
        self._set(self._saved_objects)

    def commit(self) -> None:
        """Remembers the state, so that a restarted job goes on from it.

        Every rank keeps a copy in memory, for restore(). Rank 0 also writes it to a file if
        ``smddprun --max-restarts``, or the variable SMDDP_COMMITS, asks for that; the others do not
        wait. If it cannot be written, a warning says so. It costs a copy of all values, so commit
        as seldom as the steps in between are worth.

        Raises:
          HostsUpdatedInterrupt: as check_host_updates(), which it calls.
        """
        super().commit()

    def _write(self) -> None:
        if self.is_kept() and basics.rank() == 0:
            names = [variable.name for variable, _ in self._saved]
            values = [value for _, value in self._saved]
            objects = self._saved_objects
            if self._saved_kept:
                objects = {**objects, _KEPT: self._saved_kept}
            self._commits.write(Commit(names, values, objects))

    def sync(self) -> None:
        """Gives all ranks the state of one, which is rank 0 at first, and remembers it."""
        self._send_kept()
        broadcast_(self._variables(), self.source, "elastic state")
        self._set(broadcast_object(self._objects(), self.source, name="elastic objects"))
        self.save()

    def resume(self) -> bool:
        """On rank 0, takes up the commit of the job before; returns whether there was one.

        Raises:
          ValueError: the commit is of other variables or objects; the message names them.
        """
        commit = self._commits.read() if basics.rank() == 0 else None
        if commit is None:
            return False
        if _KEPT in commit.objects:
            self._take(commit.objects[_KEPT])
        variables = self._variables()
        here = [(variable.name, tuple(variable.shape)) for variable in variables]
        there = [(n, v.shape) for n, v in zip(commit.names, commit.values, strict=True)]
        if [shape for _, shape in here] != [shape for _, shape in there]:
            odd = next(pair for pair in itertools.zip_longest(here, there) if pair[0] != pair[1])
            raise ValueError(
                f"the last commit has other variables than this state: {odd[1]} for {odd[0]}; "
                "go on with the script that made it, or remove its folder (SMDDP_COMMITS)"
            )
        for variable, value in zip(variables, commit.values, strict=True):
            variable.assign(value)
        self._set({name: commit.objects[name] for name in self._names if name in commit.objects})
        return True

    def is_kept(self) -> bool:
        """Whether commits outlive the job."""
        return self._commits.kept

    def finish(self) -> None:
        """Removes the commit: the training has ended well."""
        if basics.rank() == 0:
            self._commits.remove()


def _require_eager() -> None:
    if not tf.executing_eagerly():
        raise NotImplementedError("elastic states need eager execution; TF1 sessions have none")


class TensorFlowState(ObjectState):
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


class TensorFlowKerasState(ObjectState):
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
        share.send(share.layers_of(self.model), self.source)


class KerasState(TensorFlowKerasState):
    """The name of TensorFlowKerasState in Horovod's Keras modules."""

    def __init__(self, model: Any, optimizer: Any = None, **objects: Any) -> None:
        super().__init__(model, optimizer, **objects)
