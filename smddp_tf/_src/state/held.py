"""What a layer of the script's own keeps in attributes that are no variables.

That is numbers, texts, arrays, tensors and lookup tables, and lists, tuples, sets and dicts of
these. They become plain values that can be compared, sent and kept.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.state import tables

tf = tensorflow()

_NUMBERS = (bool, int, float, complex, str, bytes, type(None), np.generic)
_DEEPEST = 16  # a container within so many others may hold itself


class NotPlain(Exception):
    """A value is of another kind."""


class Tensor(NamedTuple):
    """A tensor of TensorFlow's."""

    array: np.ndarray


class Table(NamedTuple):
    """A lookup table, by the name of its class."""

    kind: str
    keys: np.ndarray
    values: np.ndarray
    default: np.ndarray


class Members(NamedTuple):
    """A set, in an order that all processes have."""

    members: list


def _constant(array: np.ndarray) -> Any:
    return tf.constant(array, tf.string if array.dtype == object else array.dtype)


def _array(tensor: Any) -> np.ndarray:
    """A tensor's, of objects if it is of texts."""
    value = tensor.numpy()
    if not isinstance(value, (np.ndarray, np.generic, bytes)):
        raise NotPlain(f"{type(tensor).__name__}")  # ragged or sparse
    return np.asarray(value, object if isinstance(value, bytes) else None)


def own(value: Any) -> dict[str, Any]:
    """An object's own attributes, without asking a __getattr__ of the script's."""
    try:
        return object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):  # it has none, or is a wrapper of TensorFlow's
        return {}


def _is_table(value: Any) -> bool:
    of_tables = all(hasattr(type(value), one) for one in ("resource_handle", "export"))
    return of_tables and hasattr(value, "_default_value")


def _contents(table: Any) -> Table:
    keys, values = map(_array, table.export())
    order = np.argsort(keys, kind="stable") if keys.ndim == 1 else slice(None)
    default = _array(tf.convert_to_tensor(table._default_value))
    return Table(type(table).__name__, keys[order], values[order], default)


def _is_of_texts(array: np.ndarray) -> bool:
    return all(isinstance(one, (str, bytes)) for one in array.ravel())


def plain(value: Any, depth: int = 0) -> Any:
    """A value without tensors, tables and wrappers of Keras's.

    Raises:
      NotPlain: there is something else in it, or it is no longer eager.
    """
    if depth > _DEEPEST:
        raise NotPlain("containers in containers")
    if isinstance(value, _NUMBERS):
        return value
    if isinstance(value, np.ndarray) and (value.dtype != object or _is_of_texts(value)):
        return np.array(value)
    if isinstance(value, tf.Tensor) and hasattr(value, "numpy"):
        return Tensor(_array(value))
    if isinstance(value, dict):
        return {plain(key, depth + 1): plain(one, depth + 1) for key, one in value.items()}
    if isinstance(value, (set, frozenset)):
        return Members(sorted((plain(one, depth + 1) for one in value), key=repr))
    if type(value) is tuple or isinstance(value, list):
        items = [plain(one, depth + 1) for one in value]
        return tuple(items) if isinstance(value, tuple) else items
    if _is_table(value):
        return _contents(value)
    raise NotPlain(type(value).__name__)


def _made(value: Any, own: Any) -> Any:
    """The opposite of plain(); `own` is what the layer has in its place."""
    if isinstance(value, Tensor):
        return _constant(value.array)
    if isinstance(value, Members):
        return {_made(one, None) for one in value.members}
    if isinstance(value, Table):
        return _table(value, own)
    if isinstance(value, dict):
        owns = own if isinstance(own, dict) else {}
        return {key: _made(one, owns.get(key)) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        same = isinstance(own, (list, tuple)) and len(own) == len(value)
        places = list(own) if same else [None] * len(value)
        items = [_made(one, each) for one, each in zip(value, places, strict=True)]
        return tuple(items) if isinstance(value, tuple) else items
    return value


def _table(value: Table, own: Any) -> Any:
    """A table that can be changed stays the one that traced functions use."""
    keys, values, default = map(_constant, value[1:])
    if type(own).__name__ == value.kind and hasattr(own, "insert"):
        own.remove(own.export()[0])
        own.insert(keys, values)
        return own
    if value.kind == "StaticHashTable":
        initializer = tf.lookup.KeyValueTensorInitializer(keys, values)
        made = tf.lookup.StaticHashTable(initializer, default)
        return tables.replaced(own, made) if type(own).__name__ == value.kind else made
    made = tf.lookup.experimental.MutableHashTable(keys.dtype, values.dtype, default)
    made.insert(keys, values)
    return made


def _tables(value: Any, own: Any) -> Iterator[tuple[Table, Any]]:
    """The tables in a value, each with what a layer has in its place."""
    if isinstance(value, Table):
        yield value, own
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _tables(one, own.get(key) if isinstance(own, dict) else None)
    elif isinstance(value, (list, tuple)):
        for i, one in enumerate(value):
            has = isinstance(own, (list, tuple)) and len(own) == len(value)
            yield from _tables(one, own[i] if has else None)


@functools.cache
def _of_keras(base: type) -> frozenset:
    """The attributes that any layer has from the start."""
    return frozenset(vars(type("Bare", (base,), {})()))


def _base(layer: Any) -> type:
    """Keras's class Layer, of the layer's Keras."""
    kinds = [one for one in type(layer).__mro__ if one.__name__ == "Layer"]
    return next(one for one in kinds if "keras" in one.__module__)


def attributes(layer: Any) -> dict:
    """Name -> value of what the layer's own classes have set; not its layers and variables."""
    known = _of_keras(_base(layer))

    def is_its_own(name, value):
        parts = hasattr(type(value), "assign") or hasattr(type(value), "_flatten_layers")
        return name not in known and not name.startswith("_self_") and not parts

    # Sorted, as the order in which they were set says nothing.
    return {name: one for name, one in sorted(vars(layer).items()) if is_its_own(name, one)}


def capture(layer: Any) -> dict:
    """Name -> plain value of the attributes that have one."""
    found = {}
    for name, value in attributes(layer).items():
        try:
            found[name] = plain(value)
        except NotPlain:
            continue
    return found


def others(layer: Any) -> dict:
    """Name -> value of the attributes that have none."""
    some = capture(layer)
    return {name: one for name, one in attributes(layer).items() if name not in some}


def is_data(value: Any) -> bool:
    """Whether there is an array, a tensor or a table in what plain() returned."""
    if isinstance(value, dict):
        return any(is_data(one) for one in value.values())
    if isinstance(value, (np.ndarray, Tensor, Table)):
        return True
    return isinstance(value, (list, tuple)) and any(is_data(one) for one in value)


def described(value: Any) -> str:
    """What plain() returned, in a few words that are as different as the values are."""
    if not is_data(value):
        return repr(value)
    short = digest(value)
    first = value.keys if isinstance(value, Table) else getattr(value, "array", value)
    if not isinstance(first, np.ndarray):
        return f"a {type(value).__name__} ({short})"
    kind = getattr(value, "kind", first.dtype.name)
    some = ", ".join(str(tf.compat.as_str_any(one)) for one in first.ravel()[:3].tolist())
    more = "..." if first.size > 3 else ""
    return f"{kind} of shape {list(first.shape)}, {some}{more} ({short})"


def problem(layer: Any, state: dict) -> str:
    """Why a layer cannot take what capture() returned for another; "" if it can."""
    for name, value in state.items():
        for table, own in _tables(value, getattr(layer, name, None)):
            known = table.kind in ("StaticHashTable", "MutableHashTable")
            if not known and type(own).__name__ != table.kind:
                return (
                    f"has no {table.kind} in {name!r} that could take the root's contents: make "
                    "it in the layer's constructor"
                )
    return ""


def apply(layer: Any, state: dict) -> None:
    """Sets those attributes that differ."""
    own = capture(layer)
    for name, value in state.items():
        if name not in own or digest(own[name]) != digest(value):
            setattr(layer, name, _made(value, getattr(layer, name, None)))


def _short(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def digest(value: Any) -> str:
    """A text that is as different as the values are; of dicts that differ in order, the same."""
    if isinstance(value, dict):
        return _short(repr(sorted((repr(k), digest(one)) for k, one in value.items())).encode())
    if isinstance(value, (list, tuple)):
        return _short(repr([type(value).__name__, *map(digest, value)]).encode())
    if not isinstance(value, np.ndarray):
        return repr(value)
    data = repr(value.tolist()).encode() if value.dtype == object else value.tobytes()
    return _short(repr((value.dtype.str, value.shape)).encode() + data)
