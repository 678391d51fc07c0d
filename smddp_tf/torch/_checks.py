"""What tensors must be like. A failed check is told to the other ranks (_steps.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class BadInputError(ValueError):
    """A rank's arguments cannot be used. Nothing was sent."""


def _layout(tensor: torch.Tensor) -> str:
    """The order of a tensor's elements in memory: "" for rows, or a name; "other" if strided."""
    if tensor.is_contiguous():
        return ""
    for dims, order in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if tensor.dim() == dims and tensor.is_contiguous(memory_format=order):
            return str(order).removeprefix("torch.")
    return "other"


def _is_lazy(tensor: torch.Tensor) -> bool:
    """Whether it stands for the conjugate or the negative of what is in memory.

    Gradients of complex numbers often do: of z.conj(), say, or of its imaginary part.
    """
    return tensor.is_conj() or tensor.is_neg()


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether its elements are in memory as they are, in the order of rows."""
    return tensor.is_contiguous() and not _is_lazy(tensor)


def rows(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor to read: itself if it is plain, else a copy."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def in_memory(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors to write in place, copies of those that are lazy; then put_back() them."""
    if not any(map(_is_lazy, tensors)):
        return tensors
    return [tensor.detach().clone() if _is_lazy(tensor) else tensor for tensor in tensors]


def put_back(written: list[torch.Tensor], tensors: list[torch.Tensor]) -> None:
    """Copies what was written elsewhere to the tensors that it is for."""
    if written is not tensors:
        for tensor, copy in zip(tensors, written, strict=True):
            if copy is not tensor:
                tensor.detach().copy_(copy)


def check_dense(tensors: Sequence[torch.Tensor], what: str) -> None:
    """Rejects what has no elements in memory, and tensors of several dtypes or devices.

    Raises:
      BadInputError: a tensor is sparse, on no CPU or GPU or without memory, or dtypes or devices
        differ.
    """
    for tensor in tensors:
        if tensor.layout is not torch.strided:
            raise BadInputError(
                f"{what} takes dense tensors, not {tensor.layout}; give tensor.to_dense()"
            )
        if tensor.device.type not in ("cpu", "cuda"):
            raise BadInputError(
                f"{what} takes tensors on the CPU or a GPU, not on {tensor.device}; give "
                "tensor.cpu()"
            )
        if tensor.numel() and not tensor.data_ptr():
            raise BadInputError(
                f"{what} takes tensors with elements in memory, not a {type(tensor).__name__} "
                "that stands for others; of a DTensor give tensor.to_local()"
            )
        if tensor.device != tensors[0].device:
            raise BadInputError(
                f"{what} takes tensors on one device, not on {tensors[0].device} and "
                f"{tensor.device}"
            )
        if tensor.dtype is not tensors[0].dtype:
            raise BadInputError(
                f"{what} takes tensors of one dtype, not {tensors[0].dtype} and {tensor.dtype}"
            )


def in_place(tensors: Sequence[torch.Tensor], what: str) -> str:
    """Checks tensors that are read and written where they are.

    Returns:
      Their order in memory if it is not that of rows, which ranks compare.

    Raises:
      BadInputError: as check_dense(), or the elements do not lie side by side.
    """
    check_dense(tensors, what)
    orders = [_layout(tensor) for tensor in tensors]
    if "other" in orders:
        strides = tensors[orders.index("other")].stride()
        raise BadInputError(
            f"{what} writes to contiguous tensors, not to one with strides {strides}; give "
            "tensor.contiguous()"
        )
    return " ".join(orders).strip()


def output(tensor: torch.Tensor, what: str) -> None:
    """Checks a tensor that is written as rows.

    Raises:
      BadInputError: as in_place(), or it is in another order, or a conjugated or negated view.
    """
    if in_place([tensor], what):
        raise BadInputError(f"{what} writes to contiguous tensors; give tensor.contiguous()")
    if _is_lazy(tensor):
        raise BadInputError(
            f"{what} writes to tensors, not to conjugated or negated views; give tensor.clone()"
        )


def check_count(given: int, wanted: int, what: str) -> None:
    """Rejects a list of tensors that has not one for each rank.

    Raises:
      BadInputError: it has more or fewer.
    """
    if given != wanted:
        raise BadInputError(f"{what} takes {wanted} tensors, one for each rank, not {given}")


def check_elements(given: int, wanted: int, what: str) -> None:
    """Rejects a tensor of another size.

    Raises:
      BadInputError: the numbers differ.
    """
    if given != wanted:
        raise BadInputError(f"{what} has {given} elements; it must have {wanted}")


def only(tensors: Any, what: str) -> Any:
    """The one element of a list; a tensor by itself is taken for it.

    Raises:
      BadInputError: there are several; each rank has one device here.
    """
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise BadInputError(f"{what} takes one tensor from each rank, not {len(tensors)}")
    return tensors[0]
