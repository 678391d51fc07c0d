"""Tensors of a list that collectives read and write: where they are, or side by side in one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from smddp_tf.torch import _checks


def _side_by_side(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Their elements without a copy, if each begins where the one before it ends, as chunks do."""
    first = tensors[0].detach()
    storage, place = first.untyped_storage().data_ptr(), first.data_ptr()
    for tensor in tensors:
        same = tensor.untyped_storage().data_ptr() == storage
        if not same or tensor.data_ptr() != place or not _checks.is_plain(tensor):
            return None
        place += tensor.numel() * tensor.element_size()
    return first.as_strided([sum(tensor.numel() for tensor in tensors)], [1])


def joined(tensors: Sequence[torch.Tensor], written: torch.Tensor) -> torch.Tensor:
    """The elements of all tensors, one after the other, apart from what is written."""
    if not tensors:
        return written.new_empty(0)
    whole = _side_by_side(tensors)
    if whole is None:
        return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    return apart(whole, written)


def room(tensors: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """Where the elements of all tensors are written, one after the other; then spread() them."""
    whole = _side_by_side(tensors) if tensors else None
    return like.new_empty(sum(t.numel() for t in tensors)) if whole is None else whole


def spread(elements: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copies elements, one after the other, into tensors, if they are not there."""
    if tensors and elements.data_ptr() == tensors[0].data_ptr():
        return
    parts = elements.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.detach().copy_(part.view(tensor.shape))


def apart(read: torch.Tensor, written: torch.Tensor) -> torch.Tensor:
    """A tensor that is read, or a copy if it may lie where others are written."""
    same = read.untyped_storage().data_ptr() == written.untyped_storage().data_ptr()
    return read.clone() if same else _checks.rows(read)


def in_host_memory(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the core may read and write all of them where they are."""
    return all(not tensor.is_cuda and _checks.is_plain(tensor) for tensor in tensors)


def places(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """Where plain tensors begin and end in memory."""
    begins = [tensor.data_ptr() for tensor in tensors]
    return [(one, one + tensor.nbytes) for one, tensor in zip(begins, tensors, strict=True)]


def unchanged(
    read: torch.Tensor, written: Sequence[tuple[int, int]], at: int | None = None
) -> torch.Tensor:
    """A plain tensor to read: a copy if it would change while others are written.

    Args:
      read: a tensor.
      written: places() of others.
      at: the index of the place at which it may be itself.
    """
    read = _checks.rows(read)
    ((begin, end),) = places([read])
    for i, (first, last) in enumerate(written):
        if begin < last and first < end and not (i == at and begin == first):
            return read.clone()
    return read


def own_part(read: torch.Tensor, written: torch.Tensor, before: int) -> torch.Tensor:
    """What is gathered: as it is, if it lies where it goes to, `before` elements from the first."""
    in_place = read.data_ptr() == written.data_ptr() + before * read.element_size()
    return read if in_place and _checks.is_plain(read) else apart(read, written)
