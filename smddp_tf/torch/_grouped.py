"""Horovod's collectives of several PyTorch tensors at once, which may be of different dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import Work

from smddp_tf._src.job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf._src.job.reduce_op import Average, ReduceOp
from smddp_tf.torch import _collectives
from smddp_tf.torch._collectives import begin, resolve_op, synchronize
from smddp_tf.torch._compression import Compression
from smddp_tf.torch._exchange import Reducescatter, scatter_op, scattered
from smddp_tf.torch._steps import Steps


def _list(tensors: Any, what: str) -> list[torch.Tensor]:
    """The tensors.

    Raises:
      ValueError: they are no list or tuple of tensors.
    """
    is_list = isinstance(tensors, list | tuple)
    if not is_list or not all(isinstance(one, torch.Tensor) for one in tensors):
        raise ValueError(f"{what} takes a list of tensors, not {type(tensors).__name__}")
    return list(tensors)


def _of_each(function: Any, what: str, options: Any, pairs: Any, compression: Any) -> list[Any]:
    """Applies a function to compressed tensors, which come with what restores them."""
    results = function.apply(what, options, *(small for small, _ in pairs)) if pairs else ()
    both = zip(results, pairs, strict=True)
    return [compression.decompress(result, context) for result, (_, context) in both]


# ---- allreduce ----------------------------------------------------------------------------------


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Work:
    """Starts to reduce a list of tensors in place; other arguments as of allreduce_async_().

    Returns:
      A handle; synchronize() returns the tensors in a list.

    Raises:
      ValueError: an argument cannot be used.

    Examples:
      >>> handle = hvd.grouped_allreduce_async_([torch.ones(2), torch.ones(1)])
      >>> [one.tolist() for one in hvd.synchronize(handle)]
      [[1.0, 1.0], [1.0]]
    """
    listed, op = _list(tensors, "grouped_allreduce"), resolve_op(average, op)

    group = check_process_set(process_set)
    steps = _collectives.reduced_lists(listed, op, prescale_factor, postscale_factor, group)
    return begin("grouped_allreduce", name, group.id, steps, wait=False, tensors=listed)


def grouped_allreduce_async(tensors: Sequence[torch.Tensor], *arguments: Any, **named: Any) -> Work:
    """Starts to reduce copies of tensors; otherwise as grouped_allreduce_async_().

    Examples:
      >>> handle = hvd.grouped_allreduce_async([torch.ones(2)], op=hvd.Max)
      >>> hvd.synchronize(handle)[0].tolist()
      [1.0, 1.0]
    """
    copies = [_collectives.copy(one) for one in _list(tensors, "grouped_allreduce")]
    return grouped_allreduce_async_(copies, *arguments, **named)


def grouped_allreduce_(tensors: Sequence[torch.Tensor], *arguments: Any, **named: Any) -> Any:
    """Reduces tensors in place and returns them; arguments as of grouped_allreduce_async_().

    Examples:
      >>> hvd.grouped_allreduce_([torch.ones(1), torch.ones(1, dtype=torch.float64)])
      [tensor([1.]), tensor([1.], dtype=torch.float64)]
    """
    return synchronize(grouped_allreduce_async_(tensors, *arguments, **named))


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduces tensors; their gradients are reduced in the same way. Arguments as of allreduce().

    Returns:
      A list of tensors of the same shapes and dtypes.

    Examples:
      >>> [one.tolist() for one in hvd.grouped_allreduce([torch.ones(2), torch.ones(1)])]
      [[1.0, 1.0], [1.0]]
    """
    pairs = [compression.compress(one) for one in _list(tensors, "grouped_allreduce")]
    options: dict[str, Any] = {
        "average": average,
        "name": name,
        "op": op,
        "process_set": process_set,
    }
    options |= {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    return _of_each(_collectives.Allreduce, "grouped_allreduce", options, pairs, compression)


# ---- allgather ----------------------------------------------------------------------------------


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Work:
    """Starts to gather tensors along their first dimensions; arguments as of allgather_async().

    Returns:
      A handle; synchronize() returns the gathered tensors in a list.

    Examples:
      >>> handle = hvd.grouped_allgather_async([torch.ones(1), torch.ones(2, 3)])
      >>> len(hvd.synchronize(handle)[1]) == 2 * hvd.size()
      True
    """
    group = check_process_set(process_set)
    listed = _list(tensors, "grouped_allgather")

    def steps() -> Steps:
        return (yield from _collectives.gathered(listed, group.size))[0]

    return begin("grouped_allgather", name, group.id, steps(), wait=False, tensors=listed)


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Gathers tensors; arguments as of grouped_allgather_async(), gradients as of allgather().

    Examples:
      >>> ones, ranks = hvd.grouped_allgather([torch.ones(2), torch.tensor([hvd.rank()])])
      >>> ranks.tolist() == list(range(hvd.size()))
      True
    """
    listed = _list(tensors, "grouped_allgather")
    apply = _collectives.Allgather.apply
    return list(apply("grouped_allgather", name, process_set, *listed)) if listed else []


# ---- reducescatter ------------------------------------------------------------------------------


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Work:
    """Starts to reduce tensors, of which each rank gets some rows; as reducescatter_async().

    Returns:
      A handle; synchronize() returns this rank's rows of each tensor, in a list.

    Examples:
      >>> handle = hvd.grouped_reducescatter_async([torch.ones(hvd.size())])
      >>> hvd.synchronize(handle)[0].tolist()
      [1.0]
    """
    listed, op = _list(tensors, "grouped_reducescatter"), scatter_op(op)
    group = check_process_set(process_set)
    steps = scattered(listed, op, prescale_factor, postscale_factor, group)
    return begin("grouped_reducescatter", name, group.id, steps, wait=False, tensors=listed)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Reduces tensors, of which each rank gets some rows; otherwise as reducescatter().

    Examples:
      >>> (own,) = hvd.grouped_reducescatter([torch.ones(hvd.size(), 2)], op=hvd.Sum)
      >>> own.tolist() == [2 * [hvd.size()]]
      True
    """
    pairs = [compression.compress(one) for one in _list(tensors, "grouped_reducescatter")]
    options: dict[str, Any] = {"name": name, "op": op, "process_set": process_set}
    options |= {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    return _of_each(Reducescatter, "grouped_reducescatter", options, pairs, compression)
