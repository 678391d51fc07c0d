"""Checkpoints of which each rank writes a part: folders of safetensors files.

    DIRECTORY/checkpoint-000007/part-00002-of-00004.safetensors

A rank writes its part beside its place, and moves it there once the disk has it. So a checkpoint is
whole when all its parts are in place; nothing lists them, and a rank that is killed leaves one that
is not whole. Numbers only grow: what exists is never written again.

A part's tensor is a whole array, or a range of the elements of one. The metadata tells the first
element and the whole shape of each.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

_FORMAT = "smddp_tf checkpoint 1"
_FOLDER = re.compile(r"checkpoint-(\d+)")
_PART = re.compile(r"part-(\d+)-of-(\d+)\.safetensors")
_INSTALL = (
    "ShardedCheckpoint writes safetensors files: pip install 'smddp_tf[checkpoints]', or "
    "'safetensors>=0.8'"
)


class Piece(NamedTuple):
    """Elements of an array, from one of them on, in the order of its rows."""

    key: str
    start: int
    shape: tuple[int, ...]  # of the whole array
    array: np.ndarray


def require_safetensors() -> None:
    """Rejects an environment that cannot write.

    Raises:
      ImportError: safetensors is missing, or so old that it would stop training while it writes.
    """
    try:
        import safetensors.numpy
    except ImportError as error:
        raise ImportError(_INSTALL) from error
    version = tuple(map(int, re.findall(r"\d+", safetensors.__version__)[:2]))
    if version < (0, 8):  # those keep Python's lock
        raise ImportError(f"{_INSTALL}; this is {safetensors.__version__}")


def _numbered(directory: pathlib.Path) -> dict[int, pathlib.Path]:
    """All checkpoints, whole or not, by number."""
    found = {}
    for path in directory.iterdir() if directory.is_dir() else ():
        if match := _FOLDER.fullmatch(path.name):
            found[int(match[1])] = path
    return found


def next_number(directory: pathlib.Path) -> int:
    """The number after all that exist."""
    return max(_numbered(directory), default=0) + 1


def path_of(directory: pathlib.Path, number: int) -> pathlib.Path:
    """The folder of a checkpoint."""
    return directory / f"checkpoint-{number:06}"


def _parts(path: pathlib.Path) -> list[pathlib.Path] | None:
    """The parts of a checkpoint in order; None if one is missing."""
    found = {}
    for part in path.iterdir() if path.is_dir() else ():
        if match := _PART.fullmatch(part.name):
            found[int(match[1])] = (int(match[2]), part)
    counts = {count for count, _ in found.values()}
    if len(counts) != 1 or sorted(found) != list(range(1, counts.pop() + 1)):
        return None
    return [found[number][1] for number in sorted(found)]


def whole(directory: pathlib.Path) -> list[pathlib.Path]:
    """The checkpoints of which no part is missing, the newest first."""
    numbered = _numbered(directory)
    return [numbered[n] for n in sorted(numbered, reverse=True) if _parts(numbered[n]) is not None]


def prune(directory: pathlib.Path, keep: int) -> None:
    """Deletes what is older than the newest `keep` whole checkpoints, whole or not."""
    kept = whole(directory)[:keep]
    for number, path in _numbered(directory).items():
        if len(kept) == keep and number < int(kept[-1].name.rpartition("-")[2]):
            shutil.rmtree(path, ignore_errors=True)


def _sync(path: pathlib.Path) -> None:
    """Returns once the disk has a file, or the names in a folder."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def write(
    path: pathlib.Path, rank: int, ranks: int, run: str, pieces: list[Piece], facts: dict[str, Any]
) -> None:
    """Writes a rank's part of a checkpoint.

    Args:
      path: its folder, which the first rank has made.
      rank: whose part it is.
      ranks: the number of parts.
      run: the same text in all parts.
      pieces: what the part has.
      facts: what else is to be known, as JSON has it.

    Raises:
      OSError: the disk is full, or the folder may not be written or is not here.
    """
    import safetensors
    import safetensors.numpy

    if not path.is_dir():
        raise FileNotFoundError(
            f"{path} was made on the first rank and is not here: all ranks must see one directory"
        )
    metadata = {
        "format": _FORMAT,
        "run": run,
        "facts": json.dumps(facts),
        "pieces": json.dumps({piece.key: [piece.start, piece.shape] for piece in pieces}),
    }
    tensors = {piece.key: np.asarray(piece.array, order="C") for piece in pieces}
    place = path / f"part-{rank + 1:05}-of-{ranks:05}.safetensors"
    beside = place.with_name(f".{place.name}.{run}")
    try:
        safetensors.numpy.save_file(tensors, beside, metadata)
        _sync(beside)
        beside.rename(place)
    except safetensors.SafetensorError as error:
        raise OSError(str(error)) from error
    finally:
        beside.unlink(missing_ok=True)
    _sync(path)
    _sync(path.parent)


class Checkpoint:
    """A whole checkpoint, to be read.

    Args:
      path: its folder.

    Raises:
      OSError: a part cannot be read.
      ValueError: the files are not of one checkpoint.
    """

    def __init__(self, path: pathlib.Path) -> None:
        import safetensors

        self.path, self.facts = path, {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._places: dict[str, list[tuple[int, Any]]] = {}  # key -> (first element, file)
        parts, runs = _parts(path), set()
        if parts is None:
            raise FileNotFoundError(f"not all parts of {path} are there")
        for part in parts:
            try:
                file = safetensors.safe_open(part, "numpy")
            except safetensors.SafetensorError as error:
                raise OSError(f"{part}: {error}") from error
            metadata = file.metadata() or {}
            if metadata.get("format") != _FORMAT:
                raise ValueError(f"{part} was not written by ShardedCheckpoint")
            runs.add(metadata["run"])
            self.facts.update(json.loads(metadata["facts"]))
            for key, (start, shape) in json.loads(metadata["pieces"]).items():
                self.shapes[key] = tuple(shape)
                self._places.setdefault(key, []).append((start, file))
        if len(runs) > 1:
            raise ValueError(
                f"{path} has parts of several runs: two jobs wrote to one directory at a time"
            )

    def dtype(self, key: str) -> str:
        """The dtype of an array, as safetensors names it."""
        return str(self._places[key][0][1].get_slice(key).get_dtype())

    def read(self, key: str, start: int, count: int) -> np.ndarray:
        """Elements of an array, flat.

        Raises:
          ValueError: no part has some of them.
        """
        pieces, reached = [], start
        for first, file in sorted(self._places[key], key=lambda place: place[0]):
            stored = file.get_slice(key)
            elements = int(np.prod(stored.get_shape(), dtype=np.int64))
            stop = min(start + count, first + elements)
            if not first <= reached < stop:
                continue
            flat = len(stored.get_shape()) == 1
            at = slice(reached - first, stop - first)
            pieces.append(stored[at] if flat else file.get_tensor(key).reshape(-1)[at])
            reached = stop
        if count and reached < start + count:
            raise ValueError(f"{self.path} has no element {reached} of {key!r}")
        if not pieces:
            return self._places[key][0][1].get_tensor(key).reshape(-1)[:0]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def keys(self) -> Iterable[str]:
        """The names of the arrays, in their order."""
        return sorted(self.shapes)
