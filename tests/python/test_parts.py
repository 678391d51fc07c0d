"""The files of sharded checkpoints: what is whole, what is read, what stays."""

import resource

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from smddp_tf._src.state import parts

ARRAYS = {
    "0/matrix": np.arange(42, dtype="float32").reshape(6, 7),
    "1/scalar": np.array(7, "int64"),
    "2/halves": np.arange(9).astype(ml_dtypes.bfloat16),
    "3/flags": np.array([[True, False], [False, True]]),
    "4/seeds": np.array([1, 2**32 - 1], "uint32"),
    "5/nothing": np.zeros((0, 3), "float32"),
}


def _write(path, cuts, run="a", ranks=None):
    """Writes ARRAYS, the matrix cut at some elements, a piece for each rank."""
    whole = ARRAYS["0/matrix"]
    path.mkdir(exist_ok=True)
    ranks = ranks or len(cuts) - 1
    for rank, (start, stop) in enumerate(zip(cuts[:-1], cuts[1:], strict=True)):
        flat = whole.reshape(-1)[start:stop]
        pieces = [parts.Piece("0/matrix", start, whole.shape, flat)] if start < stop else []
        if rank == 0:
            more = list(ARRAYS.items())[1:]
            pieces += [parts.Piece(key, 0, array.shape, array) for key, array in more]
        parts.write(path, rank, ranks, run, pieces, {"epoch": 3})


@pytest.mark.parametrize("cuts", [[0, 42], [0, 9, 42], [0, 30, 30, 42], [0, 0, 17, 42]])
def test_any_range_is_read(tmp_path, cuts):
    """Of whatever cuts the parts have, without what lies beside it."""
    path = parts.path_of(tmp_path, 1)
    _write(path, cuts)
    checkpoint = parts.Checkpoint(path)
    assert checkpoint.facts == {"epoch": 3}
    assert list(checkpoint.keys()) == list(ARRAYS)
    flat = ARRAYS["0/matrix"].reshape(-1)
    for start in range(43):
        for stop in range(start, 43):
            got = checkpoint.read("0/matrix", start, stop - start)
            assert np.array_equal(got, flat[start:stop]), (start, stop)
    for key, array in ARRAYS.items():
        got = checkpoint.read(key, 0, array.size)
        assert got.dtype == array.dtype
        assert checkpoint.shapes[key] == array.shape
        assert np.array_equal(got.reshape(array.shape), array), key
    with pytest.raises(ValueError, match="has no element 42 of '0/matrix'"):
        checkpoint.read("0/matrix", 40, 3)


def test_others_can_read_it(tmp_path):
    """A part of one rank is a safetensors file with the arrays as they are."""
    path = parts.path_of(tmp_path, 1)
    pieces = [parts.Piece(key, 0, array.shape, array) for key, array in ARRAYS.items()]
    path.mkdir()
    parts.write(path, 0, 1, "a", pieces, {})
    read = safetensors.numpy.load_file(path / "part-00001-of-00001.safetensors")
    assert read.keys() == ARRAYS.keys()
    for key, array in ARRAYS.items():
        assert np.array_equal(read[key], array), key


def test_what_is_not_whole_does_not_count(tmp_path):
    """A missing part, or one that is still being written."""
    assert parts.whole(tmp_path / "none") == []
    assert parts.next_number(tmp_path / "none") == 1
    first, second = parts.path_of(tmp_path, 1), parts.path_of(tmp_path, 12)
    _write(first, [0, 20, 42])
    _write(second, [0, 42], ranks=2)
    assert parts.whole(tmp_path) == [first]
    assert parts.next_number(tmp_path) == 13
    part = second / "part-00002-of-00002.safetensors"
    part.with_name(f".{part.name}.a").write_bytes(b"half")
    assert parts.whole(tmp_path) == [first]
    with pytest.raises(FileNotFoundError, match="not all parts"):
        parts.Checkpoint(second)
    parts.write(second, 1, 2, "a", [], {})
    assert parts.whole(tmp_path) == [second, first]


def test_old_ones_are_deleted(tmp_path):
    """But for the newest whole ones, and those that are written now."""
    for number in range(1, 6):
        _write(parts.path_of(tmp_path, number), [0, 20, 42], ranks=3 if number in (2, 5) else 2)
    parts.prune(tmp_path, 2)
    assert sorted(path.name[-1] for path in tmp_path.iterdir()) == ["3", "4", "5"]
    parts.prune(tmp_path, 4)
    assert sorted(path.name[-1] for path in tmp_path.iterdir()) == ["3", "4", "5"]


def test_wrong_files(tmp_path):
    """Two runs in one folder, another program's files, a file that is cut off."""
    path = parts.path_of(tmp_path, 1)
    _write(path, [0, 20, 42])
    parts.write(path, 1, 2, "b", [], {})
    with pytest.raises(ValueError, match="parts of several runs"):
        parts.Checkpoint(path)
    part = path / "part-00002-of-00002.safetensors"
    safetensors.numpy.save_file({"a": np.ones(3)}, part)
    with pytest.raises(ValueError, match="was not written by ShardedCheckpoint"):
        parts.Checkpoint(path)
    part.write_bytes(part.read_bytes()[:40])
    with pytest.raises(OSError, match="part-00002"):
        parts.Checkpoint(path)


def test_a_disk_that_takes_no_more(tmp_path):
    """An error, and neither a part nor what was begun of it."""
    path, array = parts.path_of(tmp_path, 1), np.ones(100_000)
    path.mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            parts.write(path, 0, 1, "a", [parts.Piece("x", 0, array.shape, array)], {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(path.iterdir()) == []
    assert parts.whole(tmp_path) == []


def test_an_old_safetensors(monkeypatch):
    """One that would hold up training is refused, with what to install."""
    monkeypatch.setattr(safetensors, "__version__", "0.7.0")
    with pytest.raises(ImportError, match=r"smddp_tf\[checkpoints\].*; this is 0\.7\.0"):
        parts.require_safetensors()
    monkeypatch.setattr(safetensors, "__version__", "1.0.0rc1")
    parts.require_safetensors()
