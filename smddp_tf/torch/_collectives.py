"""Horovod's collectives of PyTorch tensors. Ranks match them by name, in whatever order they come.

A handle is the Work of torch.distributed that goes on by itself.
"""

from __future__ import annotations

import collections
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.distributed import Work

from smddp_tf._src.job.basics import is_expecting, rank
from smddp_tf._src.job.enums import Matching
from smddp_tf._src.job.process_sets import (
    ProcessGroup,
    ProcessSet,
    check_process_set,
    global_process_set,
)
from smddp_tf._src.job.reduce_op import Adasum, Average, ReduceOp, Sum
from smddp_tf.torch import _adasum, _checks, _dtypes, _names, _requests, _steps
from smddp_tf.torch._checks import BadInputError
from smddp_tf.torch._compression import Compression, NoneCompressor
from smddp_tf.torch._steps import Collective, Steps, start


def begin(
    what: str, name: str | None, number: int, steps: Steps, wait: bool, tensors: Any = None
) -> Work:
    """Starts a collective on the process set with this number; by default named by its count."""
    name = f"{what}.{name or _names.next_name(what, number)}"
    _steps.note_caller()
    # A wait in the core takes 10 us less, and cannot begin what the others wait for.
    asynchronous = not wait or (bool(_steps.helpers) and not _steps.in_backward())
    work = start(Collective(what, name, number, Matching.BY_NAME), steps, asynchronous, tensors)
    if wait:
        work.wait()
    return work


def resolve_op(average: bool | None, op: ReduceOp | None) -> ReduceOp:
    """The reduce operation of Horovod's old argument, or of its new one.

    Raises:
      ValueError: both are given, or there is no such operation.
    """
    if average is not None and op is not None:
        raise ValueError("give op or average, not both; average is Horovod's old name for op")
    if op is None:
        return Sum if average is False else Average
    return ReduceOp(op)


def check_reducible(dtype: torch.dtype, what: str) -> None:
    """Rejects a dtype that the core does not reduce.

    Raises:
      BadInputError: there is none.
    """
    if dtype not in _dtypes.REDUCIBLE:
        raise BadInputError(f"{what} of {dtype} is not supported; give tensor.float()")


def alike(tensors: Sequence[torch.Tensor]) -> Iterable[list[int]]:
    """The places of tensors that travel together: of one dtype on one device."""
    places = collections.defaultdict(list)
    for place, tensor in enumerate(tensors):
        places[tensor.dtype, tensor.device].append(place)
    return places.values()


def _reduce(
    tensors: list[Any], op: ReduceOp, before: float, after: float, group: ProcessGroup
) -> Steps:
    """Reduces tensors of one dtype in place."""
    order = _checks.in_place(tensors, "allreduce")
    written = _checks.in_memory(tensors)
    if op is Adasum:
        yield from _adasum.combine(written, before, after, group)
    else:
        check_reducible(tensors[0].dtype, "allreduce")
        if before != 1 and not tensors[0].is_floating_point():
            for tensor in written:
                tensor.detach().copy_(prescaled(tensor, before))
            order, before = f"{order} prescale_factor={before}".strip(), 1.0
        yield _requests.allreduce(written, op, before, order, after)
    _checks.put_back(written, tensors)
    return tensors


def prescaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """Integers times a factor, without their fractions, as Horovod adds them up."""
    return (tensor.double() * factor).to(tensor.dtype)


def reduced_lists(
    tensors: list[Any], op: ReduceOp, before: float, after: float, group: ProcessGroup
) -> Steps:
    """Reduces tensors in place, those of a dtype on a device together."""
    for places in alike(tensors):
        some = [tensors[place].detach() for place in places]
        yield from _reduce(some, op, before, after, group)
    return tensors


def reduced(
    tensors: list[Any],
    compression: Any,
    op: ReduceOp,
    before: float,
    after: float,
    group: ProcessGroup,
) -> Steps:
    """Reduces tensors of one dtype in place, compressed on the way."""
    if compression is NoneCompressor:
        yield from _reduce(tensors, op, before, after, group)
        return tensors
    with torch.no_grad():
        pairs = [compression.compress(tensor) for tensor in tensors]
    yield from _reduce([tensor for tensor, _ in pairs], op, before, after, group)
    with torch.no_grad():
        for tensor, (small, context) in zip(tensors, pairs, strict=True):
            tensor.copy_(compression.decompress(small, context))
    return tensors


def _first(steps: Steps) -> Steps:
    """The one tensor of a list that steps return."""
    return (yield from steps)[0]


def copy(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's elements by rows, without its gradient."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Work:
    """Starts to reduce a tensor in place.

    Args:
      tensor: of any shape, of a floating or integer dtype, equal on all ranks; contiguous.
      average: Horovod's old argument; False means Sum.
      name: by which ranks match it; no other that is under way has it.
      op: Average (of integers without its fraction), Sum, Adasum (of floating dtypes), Min, Max or
        Product.
      prescale_factor: multiplies the tensor before it is reduced.
      postscale_factor: multiplies the result.
      process_set: whose ranks take part.

    Returns:
      A handle for poll() and synchronize().

    Raises:
      ValueError: an argument cannot be used.
      torch.distributed.DistBackendError: from synchronize(): ranks disagree, or one died.

    Examples:
      >>> handle = hvd.allreduce_async_(torch.ones(3), op=hvd.Sum)
      >>> hvd.synchronize(handle).tolist() == 3 * [hvd.size()]
      True
    """
    op = resolve_op(average, op)
    group = check_process_set(process_set)
    steps = _first(_reduce([tensor.detach()], op, prescale_factor, postscale_factor, group))
    return begin("allreduce", name, group.id, steps, wait=False, tensors=tensor)


def allreduce_async(tensor: torch.Tensor, *arguments: Any, **named: Any) -> Work:
    """Starts to reduce a copy of a tensor; otherwise as allreduce_async_().

    Examples:
      >>> handle = hvd.allreduce_async(torch.ones(3), name="loss")
      >>> hvd.synchronize(handle).tolist()
      [1.0, 1.0, 1.0]
    """
    return allreduce_async_(copy(tensor), *arguments, **named)


def allreduce_(tensor: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
    """Reduces a tensor in place, and returns it; arguments as of allreduce_async_().

    Examples:
      >>> values = torch.ones(3)
      >>> hvd.allreduce_(values, op=hvd.Sum).tolist() == 3 * [hvd.size()]
      True
    """
    synchronize(allreduce_async_(tensor, *arguments, **named))
    return tensor


class Allreduce(torch.autograd.Function):
    """Reduces tensors; their gradients are reduced in the same way."""

    @staticmethod
    def forward(ctx: Any, what: str, options: dict[str, Any], *tensors: torch.Tensor) -> Any:
        ctx.what, ctx.options = what, options
        return tuple(_reduce_now(what, tensors, **options))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        op = resolve_op(ctx.options["average"], ctx.options["op"])
        if op not in (Sum, Average):
            raise ValueError(f"allreduce with op={op} has no gradient; Sum and Average have")
        options = {**ctx.options, "name": gradient_name(ctx.options["name"])}
        return None, None, *_reduce_now(ctx.what, gradients, **options)


def gradient_name(name: str | None) -> str | None:
    """By which ranks match the gradient of a collective."""
    return f"{name}.gradient" if name else None


def _reduce_now(
    what: str,
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduces copies of tensors, and waits."""
    copies, group = [copy(one) for one in tensors], check_process_set(process_set)
    op = resolve_op(average, op)
    steps = reduced_lists(copies, op, prescale_factor, postscale_factor, group)
    return begin(what, name, group.id, steps, True, copies).result()


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduces a tensor over the ranks. Its gradient is reduced in the same way.

    Args:
      tensor: as of allreduce_async_().
      average: Horovod's old argument; False means Sum.
      name: by which ranks match it.
      compression: Compression.none or .fp16.
      op: Average by default.
      prescale_factor: multiplies the tensor before it is reduced.
      postscale_factor: multiplies the result.
      process_set: whose ranks take part.

    Returns:
      A tensor of the same shape and dtype.

    Raises:
      ValueError: an argument cannot be used.
      torch.distributed.DistBackendError: ranks disagree, or one died.

    Examples:
      >>> hvd.allreduce(torch.tensor([2.0, 4.0])).tolist()
      [2.0, 4.0]
    """
    options: dict[str, Any] = {"average": average, "name": name, "op": op}
    options |= {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    options["process_set"] = process_set
    small, context = compression.compress(tensor)
    return compression.decompress(Allreduce.apply("allreduce", options, small)[0], context)


def gathered(tensors: Sequence[torch.Tensor], ranks: int) -> Steps:
    """Gathers tensors that may differ in rows; returns these, and their rows by rank and tensor."""
    parts = []
    for tensor in tensors:
        _checks.check_dense([tensor], "allgather")
        part = _checks.rows(tensor)
        parts.append(part.view(1) if part.dim() == 0 else part)
    own = [part.shape[0] for part in parts]
    shapes = ", ".join(str(list(part.shape[1:])) for part in parts)
    request, told = _requests.allgather_integers(own, ranks, f"rows of {shapes}")
    yield request
    outputs = []
    for part, counts in zip(parts, zip(*told, strict=True), strict=True):
        output = part.new_empty((sum(counts), *part.shape[1:]))
        elements = math.prod(part.shape[1:])
        yield _requests.allgather(output, part, [count * elements for count in counts])
        outputs.append(output)
    return outputs, told


def _no_gradient(tensor: torch.Tensor, what: str) -> None:
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{what} has no gradient; give tensor.detach(), call it in no_grad(), or take the "
            "function without _async"
        )


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Work:
    """Starts to gather tensors along their first dimension, which may differ between ranks.

    Args:
      tensor: of any dtype; all dimensions but the first are equal on all ranks.
      name: by which ranks match it.
      process_set: whose ranks take part.

    Returns:
      A handle for poll() and synchronize().

    Raises:
      ValueError: the tensor requires a gradient, or cannot be used.

    Examples:
      >>> handle = hvd.allgather_async(torch.ones(2, 3))
      >>> list(hvd.synchronize(handle).shape) == [2 * hvd.size(), 3]
      True
    """
    _no_gradient(tensor, "allgather_async")
    group = check_process_set(process_set)

    def steps() -> Steps:
        outputs, _ = yield from gathered([tensor], group.size)
        return outputs[0]

    return begin("allgather", name, group.id, steps(), wait=False, tensors=tensor)


class Allgather(torch.autograd.Function):
    """Gathers tensors; a gradient is the average of the ranks' gradients of this rank's rows."""

    @staticmethod
    def forward(ctx: Any, what: str, name: Any, ranks: Any, *tensors: torch.Tensor) -> Any:
        group = check_process_set(ranks)
        steps = gathered(tensors, group.size)
        outputs, told = begin(what, name, group.id, steps, True, tensors).result()
        ctx.options = {"name": gradient_name(name), "process_set": ranks}
        ctx.shapes = [one.shape for one in tensors]
        ctx.counts = list(told[group.rank])
        ctx.begins = [sum(rows[i] for rows in told[: group.rank]) for i in range(len(tensors))]
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        whole = _reduce_now("allreduce", gradients, op=Average, **ctx.options)
        places = zip(whole, ctx.begins, ctx.counts, ctx.shapes, strict=True)
        own = [one.narrow(0, begin, count).view(shape) for one, begin, count, shape in places]
        return None, None, None, *own


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Gathers tensors, as allgather_async() does, and waits.

    Its gradient is the average of the ranks' gradients of this rank's rows, as with Horovod.

    Examples:
      >>> hvd.allgather(torch.tensor([hvd.rank()])).tolist() == list(range(hvd.size()))
      True
    """
    return Allgather.apply("allgather", name, process_set, tensor)[0]


def _sent(tensors: list[Any], root: int) -> Steps:
    """Sends tensors in place, those of a dtype on a device together."""
    for places in alike(tensors):
        same = [tensors[place].detach() for place in places]
        order = _checks.in_place(same, "broadcast")
        written = _checks.in_memory(same)
        yield _requests.broadcast(written, root, order)
        _checks.put_back(written, same)
    return tensors


def _sender(root: int, group: ProcessGroup) -> int:
    """The rank that sends; of a process that an elastic job has not let in yet, itself.

    Raises:
      ValueError: the root is not in the process set.
    """
    if is_expecting():
        return group.ranks[group.rank]
    if root not in group.ranks:
        raise ValueError(f"root_rank={root} is not among the ranks {list(group.ranks)}")
    return root


def send_all(tensors: list[Any], root: int, what: str) -> None:
    """Sends tensors of the job's rank `root` to all, in place."""
    group = check_process_set(global_process_set)
    copies = [one if one.is_contiguous() else copy(one) for one in tensors]
    begin(what, None, group.id, _sent(copies, _sender(root, group)), wait=True)
    _checks.put_back(copies, tensors)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Work:
    """Starts to send the tensor of one rank to all, in place.

    Args:
      tensor: of any dtype, of one shape on all ranks; contiguous.
      root_rank: the sender's number in the job.
      name: by which ranks match it.
      process_set: whose ranks take part.

    Returns:
      A handle for poll() and synchronize().

    Raises:
      ValueError: root_rank is not in the process set, or the tensor cannot be used.

    Examples:
      >>> handle = hvd.broadcast_async_(torch.ones(3), root_rank=0)
      >>> hvd.synchronize(handle).tolist()
      [1.0, 1.0, 1.0]
    """
    group = check_process_set(process_set)
    steps = _first(_sent([tensor], _sender(root_rank, group)))
    return begin("broadcast", name, group.id, steps, wait=False, tensors=tensor)


def broadcast_async(tensor: torch.Tensor, *arguments: Any, **named: Any) -> Work:
    """Starts to send a copy of a tensor; otherwise as broadcast_async_().

    Examples:
      >>> hvd.synchronize(hvd.broadcast_async(torch.ones(1), 0)).tolist()
      [1.0]
    """
    _no_gradient(tensor, "broadcast_async")
    return broadcast_async_(copy(tensor), *arguments, **named)


def broadcast_(tensor: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
    """Sends the tensor of one rank to all, in place, and returns it.

    Examples:
      >>> hvd.broadcast_(torch.ones(2), root_rank=0).tolist()
      [1.0, 1.0]
    """
    synchronize(broadcast_async_(tensor, *arguments, **named))
    return tensor


class _Broadcast(torch.autograd.Function):
    """Sends; the root's gradient is the average of the ranks' gradients, others' are zeros."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: Any, ranks: Any) -> Any:
        ctx.root, ctx.name, ctx.process_set = root_rank, name, ranks
        return synchronize(broadcast_async_(copy(tensor), root_rank, name, ranks))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        name = gradient_name(ctx.name)
        whole = allreduce(gradients[0], op=Average, name=name, process_set=ctx.process_set)
        return whole if rank() == ctx.root else torch.zeros_like(whole), None, None, None


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Returns the tensor of one rank on all; arguments as of broadcast_async_().

    The gradient of the root is the average of the ranks' gradients, that of others is zero.

    Examples:
      >>> hvd.broadcast(torch.tensor([7]), root_rank=0).tolist()
      [7]
    """
    return _Broadcast.apply(tensor, root_rank, name, process_set)


def poll(handle: Work) -> bool:
    """Whether a handle's collective has ended, so that synchronize() would not wait.

    Examples:
      >>> handle = hvd.allreduce_async(torch.ones(1))
      >>> _ = hvd.synchronize(handle)
      >>> hvd.poll(handle)
      True
    """
    return handle.is_completed()


def synchronize(handle: Any) -> Any:
    """Waits for a handle's collective, and returns its tensor, or its tensors.

    Raises:
      torch.distributed.DistBackendError: ranks disagree, or one died.

    Examples:
      >>> hvd.synchronize(hvd.allreduce_async(torch.ones(2))).tolist()
      [1.0, 1.0]
    """
    return handle() if callable(handle) else handle.result()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits for all ranks.

    Examples:
      >>> hvd.barrier()
    """

    def steps() -> Steps:
        yield _requests.barrier()

    begin("barrier", None, check_process_set(process_set).id, steps(), wait=True)


def _object_steps(value: Any, root: int, is_root: bool, where: str | None) -> Steps:
    payload = io.BytesIO()
    if is_root:
        torch.save(value, payload)
    length = torch.tensor([payload.tell()], device="cpu")
    yield _requests.broadcast([length], root)
    data = torch.frombuffer(bytearray(payload.getvalue() or length.item()), dtype=torch.uint8)
    yield _requests.broadcast([data], root)
    if is_root:
        return value
    return torch.load(io.BytesIO(data.numpy()), map_location=where, weights_only=False)


def send_object(
    obj: Any,
    root: int,
    name: str | None,
    process_set: ProcessSet = global_process_set,
    where: str | None = None,
) -> Any:
    """broadcast_object(); where: the device of all tensors in what is returned."""
    group = check_process_set(process_set)
    root = _sender(root, group)
    is_root = group.ranks[group.rank] == root
    steps = _object_steps(obj, root, is_root, where)
    return begin("broadcast_object", name, group.id, steps, wait=True).result()


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns one rank's object on all; it travels as torch.save() writes it.

    Args:
      obj: the object of the root; what other ranks give is ignored.
      root_rank: the sender's number in the job.
      name: by which ranks match it.
      process_set: whose ranks take part.

    Raises:
      torch.distributed.DistBackendError: ranks disagree, or one died.

    Examples:
      >>> hvd.broadcast_object({"epoch": 3}, root_rank=0)
      {'epoch': 3}
    """
    return send_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Returns the objects of all ranks, in their order, on all.

    Examples:
      >>> hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))
      True
    """
    group = check_process_set(process_set)
    payload = io.BytesIO()
    torch.save(obj, payload)
    own = torch.frombuffer(bytearray(payload.getvalue()), dtype=torch.uint8)
    steps = gathered([own], group.size)
    (whole,), told = begin("allgather", name, group.id, steps, True, own).result()
    parts = whole.split([count for (count,) in told])
    return [torch.load(io.BytesIO(part.numpy()), weights_only=False) for part in parts]
