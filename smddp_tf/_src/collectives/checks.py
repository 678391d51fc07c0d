"""Argument checks of the collectives, made before any communication."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Sequence
from typing import Any

from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.graph.names import given_name, site_name
from smddp_tf._src.job import basics
from smddp_tf._src.job.process_sets import ProcessGroup, ProcessSet, global_process_set
from smddp_tf._src.job.reduce_op import Average, ReduceOp, Sum
from smddp_tf._src.types import Tensor

tf = tensorflow()

REDUCIBLE = ("float16", "bfloat16", "float32", "float64", "uint8", "int8", "int32", "int64")
MOVABLE = (*REDUCIBLE, "bool", "int16", "uint16")
_GROUPED = ("allreduce", "allgather", "reducescatter")  # those that have a function for lists


def resolve_op(average: Any, op: Any) -> ReduceOp:
    """Resolves Horovod's old `average` and new `op` argument to a ReduceOp.

    Raises:
      TypeError: average is not a bool.
      ValueError: both are given, or op is unknown.
    """
    if average is not None and (isinstance(average, ReduceOp) or average not in (True, False)):
        raise TypeError(
            f"average={average!r} is neither True nor False; an op is given by name, as op=hvd.Sum"
        )
    if average is not None and op is not None:
        raise ValueError("give op or average, not both; average is Horovod's old name for op")
    if op is None:
        op = Average if average in (None, True) else Sum
    value: Any = None if isinstance(op, bool) else op  # True would be Sum
    try:
        return ReduceOp(value)
    except ValueError:
        names = ", ".join(map(str, ReduceOp))
        raise ValueError(f"op={op!r} is unknown; use one of {names}") from None


def check_dtype(tensor: Tensor, accepted: Sequence[str], what: str) -> None:
    """Rejects an unsupported dtype.

    Raises:
      TypeError: the tensor's dtype is not among the accepted ones.
    """
    if tensor.dtype.base_dtype.name not in accepted:
        raise TypeError(
            f"{what} of {tensor.dtype.base_dtype.name} is not supported; it takes "
            + ", ".join(accepted)
        )


def integer(name: str, value: Any) -> int:
    """The value of an integer argument.

    Raises:
      TypeError: it is not an integer; bools are rejected.
    """
    given: Any = None if isinstance(value, bool) else value
    try:
        return operator.index(given)
    except (TypeError, AttributeError):  # the latter from a tensor in a graph
        raise TypeError(f"{name}={value!r} is not a whole number") from None


def resolve_name(name: Any, kind: str, group: ProcessGroup) -> str:
    """The collective's name: the given one, or by default its kind and call site.

    Raises:
      TypeError: the name is not a string.
    """
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name={name!r} is not a string; give other arguments by name")
    return given_name(name, group) if name else site_name(kind, group)


def tensor_of(value: Any, what: str) -> Tensor:
    """The value as a tensor.

    Raises:
      ValueError: it cannot be one.
    """
    if isinstance(value, tf.Tensor):
        return value
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        given, hint = type(value).__name__, ""
        if value is None:
            given, hint = "None", "; a gradient that is None is left out"
        elif isinstance(value, (list, tuple)):
            given = f"this {given}"
            hint = f"; grouped_{what} takes lists of tensors" if what in _GROUPED else ""
        raise ValueError(
            f"{what} takes a tensor, a variable, an array, or numbers in equally long lists, not "
            f"{given}{hint}"
        ) from error


def list_of(values: Any, what: str, items: str) -> list[Any]:
    """The values as a list.

    Raises:
      TypeError: they are no list, but one value, a dict, or what has variables.
    """
    one = hasattr(values, "assign") or getattr(values, "shape", None) == ()
    if not one and not isinstance(values, (str, bytes, dict)) and hasattr(values, "__iter__"):
        return list(values)
    hint = "its variables, as model.variables" if hasattr(type(values), "variables") else "[value]"
    hint = "list(values.values())" if isinstance(values, dict) else hint
    raise TypeError(f"{what} takes a list of {items}, not {type(values).__name__}; give {hint}")


def check_devices(**devices: Any) -> None:
    """Checks arguments that have no effect here.

    Raises:
      TypeError: one is not the name of a device, so it was probably meant for another argument.
    """
    for name, device in devices.items():
        if device is not None and not isinstance(device, str):
            raise TypeError(
                f"{name}={device!r} is not the name of a device; give other arguments by name, as "
                "op=hvd.Sum"
            )


def ignore_devices(**devices: Any) -> None:
    """Warns about arguments that have no effect here. Raises what check_devices() raises."""
    check_devices(**devices)
    if any(devices.values()):
        warnings.warn("device_dense and device_sparse have no effect", stacklevel=3)


def check_root(root_rank: int, process_set: ProcessSet = global_process_set) -> int:
    """Rejects a root, numbered in the job, that is not in the process set.

    Raises:
      TypeError: root_rank is not an integer.
      ValueError: root_rank is out of range or not in the set.
    """
    root_rank = integer("root_rank", root_rank)
    if not 0 <= root_rank < basics.size():
        last = basics.size() - 1
        raise ValueError(f"root_rank={root_rank} is out of range: the ranks are 0 to {last}")
    if process_set.process_set_id != 0 and root_rank not in process_set.ranks:
        raise ValueError(
            f"root_rank={root_rank} is not in {process_set!r}; it is the rank in the job, not the "
            "one in the set"
        )
    return root_rank
