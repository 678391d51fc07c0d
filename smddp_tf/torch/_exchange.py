"""Horovod's alltoall and reducescatter of PyTorch tensors."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import Work

from smddp_tf._src.job.process_sets import (
    ProcessGroup,
    ProcessSet,
    check_process_set,
    global_process_set,
)
from smddp_tf._src.job.reduce_op import Adasum, Average, ReduceOp, Sum
from smddp_tf.torch import _checks, _requests
from smddp_tf.torch._checks import BadInputError
from smddp_tf.torch._collectives import (
    Allgather,
    alike,
    begin,
    check_reducible,
    gradient_name,
    prescaled,
    resolve_op,
)
from smddp_tf.torch._compression import Compression
from smddp_tf.torch._steps import Steps


def _own_splits(splits: Any, rows: int, ranks: int) -> list[int]:
    """How many rows go to each rank.

    Raises:
      BadInputError: they do not fit the tensor.
    """
    if splits is None:
        if rows % ranks:
            raise BadInputError(f"alltoall of {rows} rows to {ranks} ranks; give splits")
        return ranks * [rows // ranks]
    try:
        numbers = [operator.index(one) for one in splits]
    except TypeError as problem:
        raise BadInputError(f"alltoall takes integers as splits: {problem}") from None
    if len(numbers) != ranks or min(numbers) < 0 or sum(numbers) != rows:
        raise BadInputError(
            f"alltoall takes {ranks} splits >= 0, one for each rank, which add up to the "
            f"tensor's {rows} rows, not {numbers}"
        )
    return numbers


def _exchanged(tensor: torch.Tensor, splits: Any, group: ProcessGroup) -> Steps:
    """Sends rows to each rank; returns what came, and how many rows from each."""
    _checks.check_dense([tensor], "alltoall")
    if tensor.dim() == 0:
        raise BadInputError("alltoall takes tensors of at least one dimension, not a scalar")
    rows = _checks.rows(tensor)
    own, words = _own_splits(splits, rows.shape[0], group.size), f"rows of {list(rows.shape[1:])}"
    request, told = _requests.allgather_integers(own, group.size, words)
    yield request
    received = [counts[group.rank] for counts in told]
    output = rows.new_empty((sum(received), *rows.shape[1:]))
    elements = math.prod(rows.shape[1:])
    yield _requests.alltoall(output, rows, [n * elements for counts in told for n in counts], words)
    return output, torch.tensor(received, dtype=torch.int32, device="cpu")


def _begin_alltoall(tensor: Any, splits: Any, name: Any, ranks: ProcessSet, wait: bool) -> Work:
    group = check_process_set(ranks)
    return begin("alltoall", name, group.id, _exchanged(tensor, splits, group), wait, tensor)


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Work:
    """Starts to send some rows of a tensor to each rank.

    Args:
      tensor: of any dtype; all dimensions but the first are equal on all ranks.
      splits: how many rows go to each rank, integers; by default as many to each.
      name: by which ranks match it.
      process_set: whose ranks take part.

    Returns:
      A handle. synchronize() returns the rows in the order of the ranks that have sent them, and
      how many came from each (int32 [ranks]).

    Raises:
      ValueError: splits do not fit on any rank.
      torch.distributed.DistBackendError: from synchronize(): they do not fit on one rank, ranks
        disagree, or one died.

    Examples:
      >>> rows = torch.full((hvd.size(), 2), hvd.rank())
      >>> received, splits = hvd.synchronize(hvd.alltoall_async(rows))
      >>> received[:, 0].tolist() == list(range(hvd.size()))
      True
    """
    return _begin_alltoall(tensor, splits, name, process_set, wait=False)


class _Alltoall(torch.autograd.Function):
    """Sends rows; their gradients travel back."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Any, name: Any, ranks: Any) -> Any:
        output, received = _begin_alltoall(tensor, splits, name, ranks, wait=True).result()
        ctx.received, ctx.name, ctx.process_set = received, name, ranks
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        name = gradient_name(ctx.name)
        back, _ = alltoall(gradients[0], ctx.received, name, ctx.process_set)
        return back, None, None, None


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends some rows of a tensor to each rank; arguments as of alltoall_async().

    Returns:
      The rows that have come; with splits also how many came from each rank.

    Examples:
      >>> splits = [2] + (hvd.size() - 1) * [0]  # all to rank 0
      >>> received, counts = hvd.alltoall(torch.ones(2), splits)
      >>> len(received) == (2 * hvd.size() if hvd.rank() == 0 else 0)
      True
    """
    output, received = _Alltoall.apply(tensor, splits, name, process_set)
    return output if splits is None else (output, received)


def scatter_op(op: ReduceOp) -> ReduceOp:
    """The reduce operation.

    Raises:
      ValueError: it is not there for reducescatter.
    """
    op = resolve_op(None, op)
    if op is Adasum:
        raise ValueError("reducescatter takes no Adasum; allreduce does")
    return op


def scattered(
    tensors: Sequence[torch.Tensor], op: ReduceOp, before: float, after: float, group: ProcessGroup
) -> Steps:
    """Reduces tensors; returns this rank's rows of each."""
    whole, own = [], []
    for tensor in tensors:
        _checks.check_dense([tensor], "reducescatter")
        check_reducible(tensor.dtype, "reducescatter")
        if tensor.dim() == 0:
            raise BadInputError("reducescatter takes tensors of at least one dimension")
        rows, more = divmod(tensor.shape[0], group.size)
        of_integers = before != 1 and not tensor.is_floating_point()
        whole.append(prescaled(tensor, before) if of_integers else _checks.rows(tensor))
        own.append(tensor.new_empty((rows + (group.rank < more), *tensor.shape[1:])))
    for places in alike(whole):
        pairs = [(own[place], whole[place]) for place in places]
        factor = before if pairs[0][0].is_floating_point() else 1.0
        yield _requests.reducescatter_rows(pairs, op, factor, after)
    return own


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Work:
    """Starts to reduce a tensor, of which each rank gets some rows.

    Args:
      tensor: of one shape on all ranks, of a floating or integer dtype. Its rows are divided
        evenly; the first ranks get one more if there is a remainder.
      name: by which ranks match it.
      op: Average (of integers without its fraction), Sum, Min, Max or Product.
      process_set: whose ranks take part.
      prescale_factor: multiplies the tensor before it is reduced.
      postscale_factor: multiplies the result.

    Returns:
      A handle for poll() and synchronize().

    Raises:
      ValueError: an argument cannot be used.

    Examples:
      >>> handle = hvd.reducescatter_async(torch.ones(hvd.size(), 2), op=hvd.Sum)
      >>> hvd.synchronize(handle).tolist() == [2 * [hvd.size()]]
      True
    """
    group, op = check_process_set(process_set), scatter_op(op)

    def steps() -> Steps:
        own = yield from scattered([tensor], op, prescale_factor, postscale_factor, group)
        return own[0]

    return begin("reducescatter", name, group.id, steps(), wait=False, tensors=tensor)


class Reducescatter(torch.autograd.Function):
    """Reduces and scatters tensors; the gradients of the rows are gathered, as with Horovod."""

    @staticmethod
    def forward(ctx: Any, what: str, options: dict[str, Any], *tensors: torch.Tensor) -> Any:
        ctx.options, group = options, check_process_set(options["process_set"])
        factors = options["prescale_factor"], options["postscale_factor"]
        steps = scattered(tensors, scatter_op(options["op"]), *factors, group)
        return tuple(begin(what, options["name"], group.id, steps, True, tensors).result())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        options, op = ctx.options, resolve_op(None, ctx.options["op"])
        if op not in (Sum, Average):
            raise ValueError(f"reducescatter with op={op} has no gradient; Sum and Average have")
        factor = options["prescale_factor"] * options["postscale_factor"]
        if op is Sum:
            factor *= check_process_set(options["process_set"]).size
        own = [one * factor for one in gradients]
        place = gradient_name(options["name"]), options["process_set"]
        return None, None, *Allgather.apply("allgather", *place, *own)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduces a tensor, of which each rank gets some rows; arguments as of reducescatter_async().

    There is also compression=Compression.none or .fp16. The gradient is gathered from the ranks,
    and with Sum multiplied by their number, as with Horovod.

    Examples:
      >>> rows = hvd.reducescatter(torch.ones(hvd.size() + 1, 3))
      >>> rows.shape[0] == (2 if hvd.rank() == 0 else 1)
      True
    """
    options: dict[str, Any] = {"name": name, "op": op, "process_set": process_set}
    options |= {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    small, context = compression.compress(tensor)
    (own,) = Reducescatter.apply("reducescatter", options, small)
    return compression.decompress(own, context)
