"""Samples of data, by which ranks compare what they hold without sending or hashing all of it."""

from __future__ import annotations

import hashlib
import numbers

import numpy as np

from smddp_tf._src.graph.framework import tensorflow

tf = tensorflow()

_ROWS = 256  # of an array, evenly spaced
_VALUES = 64  # of a row, evenly spaced
_WHOLE = 1 << 16  # elements; up to here nothing is left out
_ENTRIES = 64  # of a dict or list of arrays
_ROUNDING = 1e-3  # relative to the largest value: hosts may compute the same data a bit differently


def _texts(values) -> list:
    """Strings, without the folders of paths, in which hosts may differ; else kinds of values."""

    def text(value) -> str:
        value = value.decode(errors="replace") if isinstance(value, bytes) else value
        if isinstance(value, numbers.Number):
            return repr(value)
        return value.rsplit("/", 1)[-1] if isinstance(value, str) else type(value).__name__

    return [text(value) for value in np.asarray(values).reshape(-1).tolist()]


def _row(row) -> np.ndarray:
    flat = np.asarray(row).reshape(-1)
    return flat[:: max(1, len(flat) // _VALUES)][:_VALUES]


def sample(leaf) -> tuple | None:
    """What is compared of an array, a tensor, or a list of numbers or strings.

    Returns:
      (description of dtype and shape, sampled values, or a text of strings); None if its values
      cannot be read, as those of a tensor of a graph.
    """
    if isinstance(leaf, tf.RaggedTensor):
        leaf = leaf.flat_values
    if tf.is_tensor(leaf):
        readable = hasattr(leaf, "numpy") and leaf.dtype not in (tf.variant, tf.resource)
        if not readable or isinstance(leaf, tf.SparseTensor):
            return None
        kind, shape = leaf.dtype.name, tuple(leaf.shape)
    else:
        leaf = np.asarray(leaf)
        kind, shape = str(leaf.dtype), leaf.shape
        kind = "string" if leaf.dtype.kind in "OSU" else kind
    if int(np.prod(shape)) <= _WHOLE:
        values = leaf.numpy() if tf.is_tensor(leaf) else leaf
    else:
        rows = np.linspace(0, shape[0] - 1, min(shape[0], _ROWS)).astype(np.int64)
        values = np.stack([_row(leaf[int(row)]) for row in rows])
    values = np.asarray(values)
    if values.dtype.kind in "OSU":
        values = "\n".join(_texts(values))
    elif values.dtype.name.startswith(("float", "bfloat")):
        values = values.astype(np.float64)
    return f"{kind} {list(shape)}", values


def digest(values) -> str:
    """A hash of anything that samples consist of."""
    state = hashlib.blake2b(digest_size=16)
    if isinstance(values, np.ndarray):
        state.update(f"{values.dtype} {values.shape} ".encode())
        state.update(np.ascontiguousarray(values).tobytes())
    elif isinstance(values, (list, tuple)):
        for one in values:
            state.update(digest(one).encode())
    else:
        state.update(repr(values).encode())
    return state.hexdigest()


def same(one, other) -> bool:
    """Whether two samples are of the same data, floating-point numbers up to rounding."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
        return type(one) is type(other) and one == other
    if one.shape != other.shape or one.dtype.kind != other.dtype.kind:
        return False
    if one.dtype.kind != "f":
        return bool(np.array_equal(one, other))
    finite = np.abs(one[np.isfinite(one)])
    largest = float(finite.max()) if finite.size else 0.0
    return np.allclose(one, other, rtol=0, atol=_ROUNDING * largest, equal_nan=True)


def _is_column(value) -> bool:
    simple = (numbers.Number, str, bytes)
    if isinstance(value, (list, tuple)):
        return bool(value) and isinstance(value[0], simple) and isinstance(value[-1], simple)
    return (isinstance(value, np.ndarray) or tf.is_tensor(value)) and len(value.shape) > 0


def columns(value, path: str, shortest: int) -> dict:
    """The arrays and lists of simple values in an attribute's value, by their paths.

    Args:
      value: the value.
      path: the attribute's name.
      shortest: the least number of elements, or rows.
    """
    if _is_column(value):
        return {path: value} if len(value) >= shortest else {}
    if isinstance(value, dict):
        entries = [(f"{path}[{key!r}]", one) for key, one in value.items()]
    elif isinstance(value, (list, tuple)):
        entries = [(f"{path}[{i}]", one) for i, one in enumerate(value)]
    else:
        return {}
    return {
        name: one for name, one in entries[:_ENTRIES] if _is_column(one) and len(one) >= shortest
    }


def order_of(column) -> tuple | None:
    """The order of whole numbers or strings that are all different, as indices and files are.

    Returns:
      (a digest of them in their order, one of them sorted); None if the column is something else.
    """
    if tf.is_tensor(column):
        column = column.numpy() if hasattr(column, "numpy") else ()
    values = np.asarray(column)
    if values.ndim != 1 or values.dtype.kind not in "iuOSU":
        return None
    if values.dtype.kind in "iu":
        ascending = np.unique(values)
        return (digest(values), digest(ascending)) if ascending.size == values.size else None
    texts = _texts(values)
    if len(set(texts)) != len(texts):
        return None
    return digest("\n".join(texts)), digest("\n".join(sorted(texts)))
