"""Sums of sparse tensors: each rank gathers the elements of all, and adds them up."""

from __future__ import annotations

import math
from typing import Any

import torch

from smddp_tf._src.job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf._src.job.reduce_op import Average, ReduceOp, Sum
from smddp_tf.torch import _checks, _requests
from smddp_tf.torch._checks import BadInputError
from smddp_tf.torch._collectives import begin, resolve_op
from smddp_tf.torch._steps import Steps


def summed(tensor: torch.Tensor, ranks: int, factor: float = 1.0) -> Steps:
    """The sum over the ranks of a tensor in coordinate format, times a factor; coalesced."""
    if tensor.layout is not torch.sparse_coo:
        raise BadInputError(
            f"a sparse sum takes tensors of torch.sparse_coo, not {tensor.layout}; give "
            "tensor.to_dense(), or tensor.to_sparse_coo()"
        )
    if factor != 1.0 and not (tensor.is_floating_point() or tensor.is_complex()):
        raise BadInputError(f"the average of a sparse {tensor.dtype} is not supported; take Sum")
    own = tensor.detach().coalesce()
    values = _checks.rows(own.values())
    _checks.check_dense([values], "a sparse sum")
    indices = own.indices().t().contiguous()
    words = f"sparse {list(tensor.shape)} of {tensor.dtype}, {tensor.sparse_dim()} dims sparse"
    request, told = _requests.allgather_integers([len(indices)], ranks, words)
    yield request
    counts = [count for (count,) in told]
    gathered = []
    for part in (indices, values):
        whole = part.new_empty((sum(counts), *part.shape[1:]))
        elements = math.prod(part.shape[1:])
        yield _requests.allgather(whole, part, [count * elements for count in counts])
        gathered.append(whole)
    indices, values = gathered
    values = values if factor == 1.0 else values * factor
    # All ranks add the same values in the same order, so they have the same bits.
    return torch.sparse_coo_tensor(indices.t(), values, tensor.shape).coalesce()


class SparseHandle:
    """A sparse sum that goes on. Calling it waits, as Horovod's handle does."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def __call__(self) -> torch.Tensor:
        """Waits, and returns the sum."""
        return self._work.result()

    def wait(self) -> None:
        """Waits."""
        self._work.wait()

    def await_end_or_others(self, patience: float) -> bool:
        """Waits for the end, or until the others wait for what no thread of this rank brings."""
        return bool(self._work.await_end_or_others(patience))

    def is_completed(self) -> bool:
        """Whether it has ended."""
        return self._work.is_completed()


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
) -> SparseHandle:
    """Starts to reduce a sparse tensor; the number of its elements may differ between ranks.

    Args:
      tensor: in coordinate format, of one shape on all ranks.
      name: by which ranks match it.
      op: Average (for floating and complex dtypes) or Sum.
      process_set: whose ranks take part.

    Returns:
      A handle: synchronize(handle), or handle(), returns the result, coalesced.

    Raises:
      ValueError: an argument cannot be used.

    Examples:
      >>> tensor = torch.sparse_coo_tensor([[hvd.rank()]], [1.0], [hvd.size()])
      >>> total = hvd.synchronize(hvd.sparse_allreduce_async(tensor, "table", hvd.Sum))
      >>> total.to_dense().tolist() == hvd.size() * [1.0]
      True
    """
    op = resolve_op(None, op)
    if op not in (Average, Sum):
        raise ValueError(f"op={op}: sparse tensors are reduced by Average or Sum")
    group = check_process_set(process_set)
    steps = summed(tensor, group.size, 1 / group.size if op is Average else 1.0)
    work = begin("sparse_allreduce", name, group.id, steps, wait=False, tensors=tensor)
    return SparseHandle(work)


def reduced_gradient(
    gradient: Any, op: ReduceOp, before: float, after: float, name: str, group: Any
) -> SparseHandle:
    """Starts to reduce a sparse gradient of DistributedOptimizer."""
    factor = before * after / (group.size if op is Average else 1)
    steps = summed(gradient, group.size, factor)
    work = begin("gradients", name, group.id, steps, wait=False, tensors=gradient)
    return SparseHandle(work)
