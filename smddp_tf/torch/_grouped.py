"""Horovod's collectives of several PyTorch tensors at once, which may be of different dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import Work

from smddp_tf._src.job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf._src.job.reduce_op import Average, ReduceOp, Sum
from smddp_tf.torch import _collectives
from smddp_tf.torch._collectives import alike, begin, gradient_name, resolve_op, synchronize
from smddp_tf.torch._compression import Compression
from smddp_tf.torch._exchange import scatter_gradient, scattered
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

    def steps() -> Steps:
        for places in alike(listed):
            same = [listed[place].detach() for place in places]
            none, factors = Compression.none, (prescale_factor, postscale_factor)
            yield from _collectives.reduced(same, none, op, *factors)
        return listed

    number = check_process_set(process_set).id
    return begin("grouped_allreduce", name, number, steps(), wait=False, tensors=listed)


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


class _GroupedAllreduce(torch.autograd.Function):
    """Reductions whose gradients are reduced in the same way."""

    @staticmethod
    def forward(ctx: Any, options: dict[str, Any], *tensors: torch.Tensor) -> Any:
        ctx.options = options
        return tuple(synchronize(grouped_allreduce_async(tensors, **options)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        op = resolve_op(ctx.options["average"], ctx.options["op"])
        if op not in (Sum, Average):
            raise ValueError(f"allreduce with op={op} has no gradient; Sum and Average have")
        options = {**ctx.options, "name": gradient_name(ctx.options["name"])}
        return None, *synchronize(grouped_allreduce_async(gradients, **options))


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
    results = _GroupedAllreduce.apply(options, *(small for small, _ in pairs)) if pairs else ()
    both = zip(results, pairs, strict=True)
    return [compression.decompress(result, context) for result, (_, context) in both]


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


class _GroupedAllgather(torch.autograd.Function):
    """Gathers; the gradients are the averages of the ranks' gradients of a rank's own rows."""

    @staticmethod
    def forward(ctx: Any, name: Any, process_set: Any, *tensors: torch.Tensor) -> Any:
        group = check_process_set(process_set)
        steps = _collectives.gathered(tensors, group.size)
        outputs, told = begin("grouped_allgather", name, group.id, steps, True, tensors).result()
        ctx.name, ctx.process_set = name, process_set
        ctx.shapes = [one.shape for one in tensors]
        ctx.begins, ctx.counts = told[: group.rank].sum(0).tolist(), told[group.rank].tolist()
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        options: dict[str, Any] = {"name": gradient_name(ctx.name), "process_set": ctx.process_set}
        whole = synchronize(grouped_allreduce_async(gradients, op=Average, **options))
        places = zip(whole, ctx.begins, ctx.counts, ctx.shapes, strict=True)
        own = [one.narrow(0, begin, count).view(shape) for one, begin, count, shape in places]
        return None, None, *own


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
    return list(_GroupedAllgather.apply(name, process_set, *listed)) if listed else []


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
    listed, op = _list(tensors, "grouped_reducescatter"), resolve_op(None, op)
    group = check_process_set(process_set)
    steps = scattered(listed, op, prescale_factor, postscale_factor, group)
    return begin("grouped_reducescatter", name, group.id, steps, wait=False, tensors=listed)


class _GroupedReducescatter(torch.autograd.Function):
    """Reduces and scatters; the gradients of the rows are gathered."""

    @staticmethod
    def forward(ctx: Any, options: dict[str, Any], *tensors: torch.Tensor) -> Any:
        ctx.options = options
        return tuple(synchronize(grouped_reducescatter_async(tensors, **options)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        options = ctx.options
        ranks, op = options["process_set"], ReduceOp(options["op"])
        factor = options["prescale_factor"] * options["postscale_factor"]
        size = check_process_set(ranks).size
        own = [scatter_gradient(one, op, factor, size) for one in gradients]
        return None, *grouped_allgather(own, gradient_name(options["name"]), ranks)


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
    results = _GroupedReducescatter.apply(options, *(small for small, _ in pairs)) if pairs else ()
    both = zip(results, pairs, strict=True)
    return [compression.decompress(result, context) for result, (_, context) in both]
