"""The file of a state's last commit, on the host of rank 0."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import pickle
import warnings
from collections.abc import Iterable
from typing import Any

from smddp_tf._src.job import config
from smddp_tf._src.pickles import pickled


@dataclasses.dataclass(frozen=True)
class Commit:
    """What a state was: its objects, and the names and values of its variables."""

    names: list[str]
    values: Iterable[Any]
    objects: dict[str, Any]


class Commits:
    """Writes and reads it, if SMDDP_COMMITS names a folder.

    Only rank 0 writes, and a restarted job gives what it reads to all ranks. So the folder need not
    be shared between hosts, and no rank can be a commit ahead of another.
    """

    def __init__(self, number: int) -> None:
        folder = config.commits_folder()
        self._path: Any = pathlib.Path(folder) / f"state{number}.pickle" if folder else None

    @property
    def kept(self) -> bool:
        """Whether commits outlive the process."""
        return self._path is not None

    def write(self, commit: Commit) -> None:
        """Replaces the file; if that fails, warns and leaves the one before.

        It is not synchronized with the disk: a commit outlives the ranks, not their machine.
        """
        head, good = pickled((commit.names, commit.objects))
        problem = "" if good else f"the state cannot be pickled: {head.decode()}"
        try:
            if good:
                self._replace(head, commit.values)
        except OSError as error:
            problem = str(error)
        if problem:
            warnings.warn(
                f"the commit is not in {self._path}, so a restarted job goes on from the one "
                f"before, if there is one: {problem}",
                RuntimeWarning,
                stacklevel=4,
            )

    def _replace(self, head: bytes, values: Any) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self._path.with_suffix(".new")
        with open(new, "wb") as file:
            file.write(head)
            for value in values:  # one after the other, for memory
                pickle.dump(value, file, protocol=5)
        new.replace(self._path)

    def read(self) -> Commit | None:
        """The last commit; None without one.

        Raises:
          ValueError: the file is not one of ours.
        """
        if self._path is None or not self._path.exists():
            return None
        try:
            with open(self._path, "rb") as file:
                names, objects = pickle.load(file)
                return Commit(names, [pickle.load(file) for _ in names], objects)
        except Exception as error:
            raise ValueError(
                f"{self._path} cannot be read ({type(error).__name__}: {error}); remove it to "
                "start from the beginning"
            ) from error

    def remove(self) -> None:
        """Removes the file, and the folder if nothing else is in it."""
        if self._path is None:
            return
        self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # another state's file is there, or nothing ever was
            self._path.parent.rmdir()
