"""Records of a stream that can be read only once, such as SageMaker's pipe mode has for each epoch.

TensorFlow's own readers of files seek, which a FIFO cannot. Standard library only.
"""

from __future__ import annotations

import os
import pathlib
import stat
import struct
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO

_RECORDIO_MAGIC = 0xCED7230A
_PARTS, _LENGTH = 29, (1 << 29) - 1  # of a length word: 3 bits that say which part this is
_APPEARS_SECONDS = 120  # for the FIFO of the next epoch
_BUFFER = 1 << 20


def _crc32c_table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _crc32c_table()


def _masked_crc(data: bytes) -> int:
    """The checksum that TFRecord has of a length (Castagnoli's, rotated, plus a constant)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


class _Source:
    """Bytes of a stream; an end in the middle of a record is an error."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file, self._name = file, name
        self.number = 0  # of the record that is being read

    def error(self, text: str) -> ValueError:
        return ValueError(f"{self._name}, record {self.number}: {text}")

    def take(self, count: int, may_end: bool = False) -> bytes:
        """So many bytes; b"" at the end of the stream, if that may be here."""
        data = self._file.read(count)
        if len(data) == count or (may_end and not data):
            return data
        raise self.error(f"the stream ends {count - len(data)} bytes before the record does")

    def line(self) -> bytes:
        return self._file.readline()


def _recordio(source: _Source) -> Iterator[bytes]:
    """MXNet's format: a magic number, a length, the data, and zeros up to a multiple of 4."""
    while header := source.take(8, may_end=True):
        magic, word = struct.unpack("<II", header)
        if magic != _RECORDIO_MAGIC:
            raise source.error(f"it begins with {magic:#010x}, not RecordIO's {_RECORDIO_MAGIC:#x}")
        if word >> _PARTS:
            raise source.error(
                "it is in parts, which MXNet and SageMaker join in different ways; write records "
                "of less than 512 MiB that do not contain RecordIO's magic number"
            )
        length = word & _LENGTH
        yield source.take(length)
        source.take(-length % 4)
        source.number += 1


def _tfrecord(source: _Source) -> Iterator[bytes]:
    """TensorFlow's format: length, its checksum, data, their checksum, which is not looked at."""
    while header := source.take(12, may_end=True):
        length, crc = struct.unpack("<QI", header)
        if crc != _masked_crc(header[:8]):
            raise source.error("the checksum of its length is wrong; is this a TFRecord stream?")
        yield source.take(length)
        source.take(4)
        source.number += 1


def _lines(source: _Source) -> Iterator[bytes]:
    while line := source.line():
        yield line.removesuffix(b"\n").removesuffix(b"\r")


_KINDS: dict[str, Callable[[_Source], Iterator[bytes]]] = {
    "recordio": _recordio,
    "tfrecord": _tfrecord,
    "lines": _lines,
}


def read(path: str | os.PathLike[str], kind: str) -> Iterator[bytes]:
    """The records of a file or FIFO, as bytes.

    Args:
      path: which.
      kind: "recordio", "tfrecord" or "lines".

    Raises:
      ValueError: no such kind; or the stream is not of it, or ends within a record.
    """
    with open(path, "rb", buffering=_BUFFER) as file:
        yield from _reader(kind)(_Source(file, os.fspath(path)))


def _reader(kind: str) -> Callable[[_Source], Iterator[bytes]]:
    if kind not in _KINDS:
        raise ValueError(f"kind={kind!r}; it takes one of {', '.join(_KINDS)}")
    return _KINDS[kind]


class Stream:
    """A channel's records, once for each call: an epoch's FIFO, or the files of a folder.

    Calls return iterators, as `tf.data.Dataset.from_generator` wants:
    `from_generator(stream, output_signature=tf.TensorSpec([], tf.string))`.
    """

    def __init__(self, channel: str | os.PathLike[str], kind: str, piped: bool) -> None:
        """channel: its folder; in pipe mode FIFOs beside it, named folder_0, folder_1 and so on."""
        self._channel, self._kind, self._piped = pathlib.Path(channel), kind, piped
        self._epoch = 0
        _reader(kind)

    def __call__(self) -> Iterator[bytes]:
        if not self._piped:
            return self._of_files()
        epoch, self._epoch = self._epoch, self._epoch + 1
        return self._of_pipe(pathlib.Path(f"{self._channel}_{epoch}"))

    def _of_pipe(self, path: pathlib.Path) -> Iterator[bytes]:
        deadline = time.monotonic() + _APPEARS_SECONDS
        while not path.exists():
            if time.monotonic() > deadline:
                raise FileNotFoundError(
                    f"{path} has not appeared within {_APPEARS_SECONDS} s; pipe mode has one for "
                    "each epoch, and the next one when the last was opened"
                )
            time.sleep(0.05)
        if not stat.S_ISFIFO(path.stat().st_mode):
            raise ValueError(f"{path} is no FIFO, which pipe mode has")
        yield from read(path, self._kind)

    def _of_files(self) -> Iterator[bytes]:
        files = sorted(path for path in self._channel.rglob("*") if path.is_file())
        if not files:
            raise FileNotFoundError(f"no files in {self._channel}")
        for path in files:
            yield from read(path, self._kind)
