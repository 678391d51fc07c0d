"""State: what an elastic training needs to go on."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable
from typing import Any

from smddp_tf._src.elastic.commits import Commit, Commits
from smddp_tf._src.elastic.ranks import Ranks
from smddp_tf._src.job import basics, rendezvous
from smddp_tf.errors import HostsUpdatedInterrupt

_KEPT = "layers, besides variables"  # among a commit's objects; no attribute has such a name
_NUMBERS = itertools.count()  # scripts make their states in the same order each time


class State:
    """Base of the states: who derives from it says what save(), restore() and sync() do."""

    _ranks: Ranks

    def __init__(self) -> None:
        self._reset_callbacks: list[Any] = []
        self._counters: list[Any] = []  # callbacks that keep attributes up to date
        self._commit_count = 0  # how many there were, in earlier processes of the job too
        self._source = 0  # the rank whose state sync() gives to all

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
        self._commit_count += 1
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
        if self._ranks.any(rendezvous.connection().is_updated(), "elastic updates"):
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

    def _is_kept(self) -> bool:
        """Whether commits outlive the job."""
        return True

    def _resume(self) -> bool:
        """On rank 0, takes up the commit of the job before; returns whether there was one."""
        return False

    def _finish(self) -> None:
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
        self._refuse_names(objects)
        self._names = list(objects)
        self._set(objects)
        self._commits = Commits(next(_NUMBERS))
        self.save()

    def _refuse_names(self, names: Iterable[str]) -> None:
        for name in names:
            if hasattr(self, name):
                raise TypeError(f"{name}= cannot be an attribute of a state, which has that name")

    # ---- for who derives from this --------------------------------------------------------------

    def _kept(self) -> dict[str, Any]:
        """A copy of what belongs to the state besides objects."""
        return {}

    def _take(self, kept: dict[str, Any]) -> None:
        """Goes back to what _kept() returned."""

    def _send_kept(self) -> None:
        """Gives all ranks that of the rank `_source`."""

    def _saved_values(self) -> tuple[list[str], Iterable[Any]]:
        """Names and values, as of the last save(), that a commit has one by one, for memory."""
        return [], []

    def _take_values(self, names: list[str], values: list[Any]) -> None:
        """Goes back to those of a commit.

        Raises:
          ValueError: they do not fit.
        """

    # ---- objects --------------------------------------------------------------------------------

    def _set(self, objects: dict[str, Any]) -> None:
        for name, value in objects.items():
            setattr(self, name, copy.deepcopy(value))

    def _objects(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}

    def save(self) -> None:
        """Remembers the state in memory."""
        self._saved_objects = copy.deepcopy(self._objects())
        self._saved_kept = self._kept()

    def restore(self) -> None:
        """Takes back all changes since the last save() or commit()."""
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
        if self._is_kept() and basics.rank() == 0:
            names, values = self._saved_values()
            objects = self._saved_objects
            if self._saved_kept:
                objects = {**objects, _KEPT: self._saved_kept}
            self._commits.write(Commit(names, values, objects))

    def sync(self) -> None:
        """Gives all ranks the state of one, which is rank 0 at first, and remembers it."""
        self._send_kept()
        objects = self._ranks.broadcast_object(self._objects(), self._source, "elastic objects")
        self._set(objects)
        self.save()

    def _resume(self) -> bool:
        """On rank 0, takes up the commit of the job before; returns whether there was one.

        Raises:
          ValueError: the commit is of other variables or objects; the message names them.
        """
        commit = self._commits.read() if basics.rank() == 0 else None
        if commit is None:
            return False
        if _KEPT in commit.objects:
            self._take(commit.objects[_KEPT])
        self._take_values(commit.names, list(commit.values))
        self._set({name: commit.objects[name] for name in self._names if name in commit.objects})
        return True

    def _is_kept(self) -> bool:
        """Whether commits outlive the job."""
        return self._commits.kept

    def _finish(self) -> None:
        """Removes the commit: the training has ended well."""
        if basics.rank() == 0:
            self._commits.remove()
