"""Tensors of dtypes that the engine does not have, sent as others that it has.

A complex tensor is sent as one with its real and imaginary parts along a new last dimension, which
also reduces it: Sum, Average and Adasum of the parts are those of the complex numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smddp_tf._src.collectives.checks import MOVABLE, REDUCIBLE, check_dtype
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job.reduce_op import Adasum, Average, ReduceOp, Sum
from smddp_tf._src.types import Tensor

tf = tensorflow()


def _as_bits(dtype: Any) -> tuple[Any, Any]:
    return lambda value: tf.bitcast(value, dtype), tf.bitcast


def _as_numbers(dtype: Any) -> tuple[Any, Any]:
    return lambda value: tf.cast(value, dtype), tf.cast


# XLA cannot bitcast complex numbers, and TensorFlow knows no gradient of it.
_AS_PARTS = (
    lambda value: tf.stack([tf.math.real(value), tf.math.imag(value)], -1),
    lambda parts, dtype: tf.complex(parts[..., 0], parts[..., 1]),
)

# For each dtype: a function that makes a tensor of one that the engine has, and one that takes it
# and the dtype, and makes the value of it.
_WAYS = {
    "uint32": _as_bits("int32"),
    "uint64": _as_bits("int64"),
    "qint8": _as_bits("int8"),
    "quint8": _as_bits("uint8"),
    "qint32": _as_bits("int32"),
    "int4": _as_numbers("int8"),
    "uint4": _as_numbers("uint8"),
    "float8_e4m3fn": _as_numbers("float16"),  # which has all their numbers
    "float8_e5m2": _as_numbers("float16"),
    "complex64": _AS_PARTS,
    "complex128": _AS_PARTS,
}
CARRIED = tuple(_WAYS)
_REDUCIBLE = (*REDUCIBLE, "complex64", "complex128")
_SUMS = (Average, Sum, Adasum)


def dtype_name(value: Any) -> str:
    """The name of a tensor's or variable's dtype, without the mark of a reference."""
    return tf.as_dtype(value.dtype).base_dtype.name


def carried(tensor: Tensor) -> Tensor:
    """The tensor in a dtype that the engine has; itself, if its own is one."""
    name = dtype_name(tensor)
    return _WAYS[name][0](tensor) if name in _WAYS else tensor


def carried_text(dtype: str) -> str:
    """What ranks compare besides the tensor that carried() makes of one of this dtype."""
    return f"of {dtype}" if dtype in _WAYS else ""


def received(value: Tensor, dtype: str) -> Tensor:
    """The value of a dtype that carried() of another rank's tensor tells."""
    return _WAYS[dtype][1](value, dtype) if dtype in _WAYS else value


def check_movable(tensor: Tensor, what: str) -> None:
    """Rejects a dtype that cannot be sent.

    Raises:
      TypeError: the engine neither has it nor can carry it.
    """
    check_dtype(tensor, (*MOVABLE, *CARRIED), what)


def is_complex(tensor: Any) -> bool:
    """Whether the tensor, or tf.IndexedSlices, has complex numbers."""
    return bool(tensor.dtype.is_complex)


def check_reducible(tensor: Tensor, op: ReduceOp | int, what: str) -> None:
    """Rejects a dtype that cannot be reduced.

    Raises:
      TypeError: it is none of the engine's, or complex with an op that needs an order or products.
    """
    if not is_complex(tensor):
        check_dtype(tensor, _REDUCIBLE, what)
    elif op not in _SUMS:
        raise TypeError(
            f"{what} of {dtype_name(tensor)} takes op=Average, Sum or Adasum, not {ReduceOp(op)}"
        )


def parts_text(values: Sequence[Any]) -> str:
    """Which of tensors, slices and None are complex, for ranks to compare; "" for none."""
    places = [i for i, value in enumerate(values) if value is not None and is_complex(value)]
    return f"complex places {places}" if places else ""


def as_parts(value: Any) -> Any:
    """carried() of a complex tensor or of tf.IndexedSlices; anything else as it is."""
    if value is None or not is_complex(value):
        return value
    if not isinstance(value, tf.IndexedSlices):
        return carried(value)
    shape = value.dense_shape
    shape = None if shape is None else tf.concat([shape, tf.constant([2], shape.dtype)], 0)
    return tf.IndexedSlices(carried(value.values), value.indices, shape)


def as_whole(value: Any, given: Any) -> Any:
    """The reverse of as_parts(given), for what it was reduced to."""
    if given is None or not is_complex(given):
        return value
    dtype = dtype_name(given)
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(received(value.values, dtype), value.indices, given.dense_shape)
    return received(value, dtype)
