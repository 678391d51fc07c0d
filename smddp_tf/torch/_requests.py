"""Requests to the core (ops/capi/smddp.h) for tensors. Who runs one gives it its name.

A request refers to its tensors, so their memory stays valid as long as it exists.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch

from smddp_tf._src.job.enums import Kind, Memory
from smddp_tf._src.job.native import Request, Tensor
from smddp_tf._src.job.reduce_op import ReduceOp
from smddp_tf.torch._dtypes import BYTE, NUMBERS

# A tensor that is read, one that is written, and the dimensions of what is read.
_Part = tuple[torch.Tensor, torch.Tensor, Sequence[int]]


def _request(
    kind: Kind,
    dtype: int,
    parts: Sequence[_Part],
    *,
    op: ReduceOp = ReduceOp.Sum,
    factor: float = 1.0,
    root: int = 0,
    sizes: Sequence[int] | None = None,
    words: str = "",
) -> Request:
    """A request. sizes: the C API's part_bytes; words: what must also be equal on all ranks."""
    tensors = (Tensor * len(parts))()
    for tensor, (read, written, dims) in zip(tensors, parts, strict=True):
        tensor.input, tensor.output = read.data_ptr(), written.data_ptr()
        tensor.ndim, tensor.dims = len(dims), (ctypes.c_int64 * len(dims))(*dims)
    request = Request(kind=kind, dtype=dtype, op=op, root=root, prescale=factor, postscale=1.0)
    request.num_tensors, request.tensors = len(parts), tensors
    request.parts = parts
    if parts and parts[0][0].is_cuda:
        request.memory = Memory.CUDA
        request.stream = torch.cuda.current_stream(parts[0][0].device).cuda_stream
    if words:
        request.description = words.encode()
    if sizes is not None:
        request.part_bytes = (ctypes.c_int64 * len(sizes))(*sizes)
    return request


def _moved(dtype: torch.dtype) -> tuple[int, list[int], str]:
    """How a dtype is moved: a number of the core's, dimensions of an element, and words.

    What the core does not know goes as bytes.
    """
    number = NUMBERS.get(dtype)
    return (BYTE, [dtype.itemsize], f"of {dtype}") if number is None else (number, [], "")


def allreduce(
    tensors: Sequence[torch.Tensor],
    op: ReduceOp,
    factor: float,
    order: str = "",
    after: float = 1.0,
    dims: Callable[[torch.Tensor], Sequence[int]] = lambda tensor: tensor.shape,
) -> Request:
    """Reduces tensors of one dtype in place. order: of their elements in memory.

    factor, after: what inputs and results are multiplied by. dims: what ranks must agree on.
    """
    parts = [(tensor, tensor, dims(tensor)) for tensor in tensors]
    number = NUMBERS[tensors[0].dtype]
    request = _request(Kind.ALLREDUCE, number, parts, op=op, factor=factor, words=order)
    request.postscale = after
    return request


def broadcast(
    tensors: Sequence[torch.Tensor],
    root: int,
    order: str = "",
    dims: Callable[[torch.Tensor], Sequence[int]] = lambda tensor: tensor.shape,
) -> Request:
    """Sends tensors of one dtype from the job's rank `root`. dims: what ranks must agree on."""
    number, element, words = _moved(tensors[0].dtype)
    parts = [(tensor, tensor, [*dims(tensor), *element]) for tensor in tensors]
    words = f"{words} {order}".strip()
    return _request(Kind.BROADCAST, number, parts, root=root, words=words)


def allgather(
    written: torch.Tensor,
    read: torch.Tensor,
    counts: Sequence[int] | None = None,
    words: str = "",
) -> Request:
    """Gathers contiguous tensors, in the order of ranks. counts: of elements, where they differ."""
    number, element, more = _moved(read.dtype)
    part = (read, written, [read.numel(), *element])
    words = f"{words} {more}".strip()
    if counts is None:
        return _request(Kind.ALLGATHER, number, [part], words=words)
    sizes = [count * read.element_size() for count in counts]
    words = f"{words} elements={list(counts)}".strip()
    return _request(Kind.ALLGATHER, number, [part], sizes=sizes, words=words)


def allgather_integers(
    own: Sequence[int], ranks: int, words: str = ""
) -> tuple[Request, ctypes.Array[ctypes.Array[ctypes.c_int64]]]:
    """Gathers a few integers, without the cost of a tensor of them.

    Returns:
      The request, and once it is done, each rank's integers, by its rank.
    """
    mine, told = (ctypes.c_int64 * len(own))(*own), (ctypes.c_int64 * len(own) * ranks)()
    dims = (ctypes.c_int64 * 1)(len(own))
    address = ctypes.addressof
    tensors = (Tensor * 1)(Tensor(input=address(mine), output=address(told), ndim=1, dims=dims))
    request = Request(kind=Kind.ALLGATHER, dtype=NUMBERS[torch.int64], num_tensors=1)
    request.prescale = request.postscale = 1.0
    request.tensors, request.parts = tensors, (mine, told)
    if words:
        request.description = words.encode()
    return request, told


def reducescatter(
    written: torch.Tensor, read: torch.Tensor, ranks: int, op: ReduceOp, factor: float
) -> Request:
    """Reduces equal parts of a contiguous tensor; each rank gets its own."""
    part = (read, written, [ranks, written.numel()])
    return _request(Kind.REDUCESCATTER, NUMBERS[read.dtype], [part], op=op, factor=factor)


def reducescatter_rows(
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], op: ReduceOp, before: float, after: float
) -> Request:
    """Reduces contiguous tensors of one dtype; each rank gets some rows.

    pairs: what is written and what is read; the first ranks get a row more.
    """
    parts = [(read, written, read.shape) for written, read in pairs]
    number = NUMBERS[pairs[0][1].dtype]
    request = _request(Kind.REDUCESCATTER, number, parts, op=op, factor=before)
    request.postscale = after
    return request


def alltoall(
    written: torch.Tensor,
    read: torch.Tensor,
    counts: Sequence[int],
    words: str = "",
    elements: int | None = None,
) -> Request:
    """Exchanges parts of contiguous tensors.

    counts: the elements from rank r to rank p, at [r * ranks + p]. elements: of all that is read,
    if that is not `read`.
    """
    number, element, more = _moved(read.dtype)
    part = (read, written, [read.numel() if elements is None else elements, *element])
    sizes = [count * read.element_size() for count in counts]
    return _request(Kind.ALLTOALL, number, [part], sizes=sizes, words=f"{words} {more}".strip())


def with_lists(
    request: Request,
    written: Sequence[torch.Tensor] | None = None,
    read: Sequence[torch.Tensor] | None = None,
) -> Request:
    """The allgather or alltoall, whose parts are plain tensors in the host's memory, one a rank.

    written, read: in place of the one tensor that the request has.
    """
    for name, tensors in (("outputs", written), ("inputs", read)):
        if tensors is not None:
            places = [tensor.data_ptr() for tensor in tensors]
            setattr(request, name, (ctypes.c_void_p * len(places))(*places))
    request.lists = written, read
    return request


def barrier(words: str = "") -> Request:
    """Waits for all ranks."""
    return _request(Kind.BARRIER, BYTE, [], words=words)
