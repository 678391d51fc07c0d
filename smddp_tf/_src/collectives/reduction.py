"""The one way from a caller's tensors to reducing ops, and back.

Tensors are compressed, emitted together, and decompressed. Slices, and what a compressor or Adasum
combines itself, are gathered one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from smddp_tf._src.collectives.carried import (
    as_parts,
    as_whole,
    parts_text,
)
from smddp_tf._src.collectives.checks import resolve_name
from smddp_tf._src.collectives.scaling import (
    factor,
    factors_text,
    reduce_with_unfused_scaling,
    scaled,
)
from smddp_tf._src.collectives.slices import allreduce_slices
from smddp_tf._src.compression import Compression, check_compressor, describe
from smddp_tf._src.compression.adasum import adasum
from smddp_tf._src.graph import ops
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.graph.ops.ranks import is_alone, with_fixed_size
from smddp_tf._src.job.process_sets import ProcessSet, check_process_set
from smddp_tf._src.job.reduce_op import Adasum, Average, Sum
from smddp_tf._src.job.reduction import Reduction
from smddp_tf._src.types import Compressor, Tensor

tf = tensorflow()


def resolve_reduction(
    kind: str, op: Any, factors: Any, compression: Compressor, name: Any, process_set: ProcessSet
) -> Reduction:
    """Checks the arguments of a collective and makes a Reduction of them.

    Args:
      kind: the collective; without a name, the reduction is called after it and its call site.
      op: a ReduceOp.
      factors: pre- and postscale factor.
      compression: a compressor.
      name: as the script gave it, or None.
      process_set: the ranks that take part.

    Raises:
      ValueError: the compressor or the process set cannot be used.
      TypeError: a factor is not a number, or the name not a string.
    """
    group = check_process_set(process_set)
    check_compressor(compression)
    prescale, postscale = map(factor, factors)
    return Reduction(op, resolve_name(name, kind, group), group, prescale, postscale, compression)


def is_dense(tensor: Tensor) -> bool:
    """Whether it is neither None nor tf.IndexedSlices."""
    return tensor is not None and not isinstance(tensor, tf.IndexedSlices)


def needs_gather(reduction: Any) -> bool:
    """Whether its op or compression has ranks gather what all have, and each combine it."""
    return reduction.op == Adasum or hasattr(reduction.compression, "reduce")


def reduce_tensors(
    tensors: Sequence[Any],
    reduction: Reduction,
    alone: Callable[[int], Reduction],
    keys: Sequence[Any],
    emit: Callable[[list[Tensor], Reduction], list[Tensor]],
) -> list[Any]:
    """Reduces tensors over the ranks of a reduction.

    Args:
      tensors: tf.Tensors of dtypes that can be reduced, tf.IndexedSlices, and None, which stays.
      reduction: how.
      alone: alone(i) is how tensor i is reduced if that is done one by one.
      keys: identify the tensors for compressors that keep something of each.
      emit: emit(compressed, reduction) reduces the dense ones of a list, and returns the others.
        It gets complex tensors as their parts.

    Returns:
      The reduced tensors, in the same order.

    Raises:
      What gather_and_combine() and allreduce_slices() raise.
    """
    compared = parts_text(tensors)
    if compared:
        parts, how = list(map(as_parts, tensors)), reduction.comparing(compared)

        def part_alone(i: int) -> Reduction:
            return alone(i).comparing(compared)

        return list(map(as_whole, reduce_tensors(parts, how, part_alone, keys, emit), tensors))
    if needs_gather(reduction):
        return [
            gather_and_combine(tensor, alone(i), key)
            for i, (tensor, key) in enumerate(zip(tensors, keys, strict=True))
        ]
    packed = [
        reduction.compression.compress(tensor) if is_dense(tensor) else (tensor, None)
        for tensor in tensors
    ]
    results = emit([tensor for tensor, _ in packed], reduction)
    for i, (_, context) in enumerate(packed):
        if isinstance(results[i], tf.IndexedSlices):
            results[i] = allreduce_slices(results[i], alone(i))
        elif results[i] is not None:
            results[i] = reduction.compression.decompress(results[i], context)
    return results


def by_dtype(tensors: Sequence[Tensor]) -> list[list[int]]:
    """The indices of the dense tensors, a list for each dtype, in the order of first use."""
    found: dict[Any, Any] = {}
    for i, tensor in enumerate(tensors):
        if is_dense(tensor):
            found.setdefault(tensor.dtype.base_dtype, []).append(i)
    return list(found.values())


def _places_text(indices: list[int], count: int) -> str:
    """Which tensors of a list one op reduces, for the ranks to compare; "" for all of them."""
    return "" if len(indices) == count else f"places {indices} of a list of {count}"


def _compressor_text(compression: Compressor) -> str:
    """A compressor, for the ranks to compare; "" for none."""
    return "" if compression is Compression.none else f"compression={describe(compression)}"


def emit_by_dtype(
    op: Callable[[list[Tensor], Reduction], list[Tensor]],
) -> Callable[[list[Tensor], Reduction], list[Tensor]]:
    """Makes an emit for reduce_tensors() of an op: one op for the tensors of each dtype."""

    def emit(tensors: list[Tensor], reduction: Reduction) -> list[Tensor]:
        results = list(tensors)
        reduction = reduction.comparing(_compressor_text(reduction.compression))
        for indices in by_dtype(tensors):
            # The ranks compare the list too: an op has a part of it only.
            own = reduction.comparing(_places_text(indices, len(tensors)))
            reduced = reduce_with_unfused_scaling(op, [tensors[i] for i in indices], own)
            for i, result in zip(indices, reduced, strict=True):
                results[i] = result
        return results

    return emit


def allreduce_by_dtype(tensors: list[Tensor], reduction: Reduction) -> list[Tensor]:
    """Reduces the dense tensors of a list with one op per dtype; returns the others."""
    if not is_alone(reduction.group):
        return emit_by_dtype(ops.allreduce)(tensors, reduction)
    return [
        scaled(scaled(tensor, reduction.prescale), reduction.postscale)
        if is_dense(tensor)
        else tensor
        for tensor in tensors
    ]


def _gatherer(reduction: Reduction) -> Callable[[Tensor], Tensor]:
    """Returns a function that stacks all ranks' tensors along a new first dimension."""
    calls = iter(range(1 << 30))
    group = reduction.group

    def gather(tensor: Tensor) -> Tensor:
        name = f"{reduction.name}.{next(calls)}"
        gathered = ops.allgather(tensor[tf.newaxis], name, group, reduction.compared)
        gathered.set_shape([None, *tensor.shape.as_list()])
        return with_fixed_size(gathered, group, name)

    return gather


def gather_and_combine(tensor: Tensor, reduction: Reduction, key: Any) -> Any:
    """Reduces one tensor, or slices, with Adasum or with a compressor that has reduce().

    Each rank combines by itself what all have gathered, so with that they compare how.

    Raises:
      ValueError: such a compressor is combined with an op other than Average and Sum, or with a
        tensor whose static shape is unknown.
      TypeError: Adasum of integers.
    """
    if not is_dense(tensor):
        return tensor if tensor is None else allreduce_slices(tensor, reduction)
    result = scaled(tensor, reduction.prescale)
    if not is_alone(reduction.group):
        factors = factors_text(reduction.prescale, reduction.postscale)
        combine = _compressed if hasattr(reduction.compression, "reduce") else _adasum
        result = combine(result, reduction.scaled_by().comparing(factors), key)
    return scaled(result, reduction.postscale)


def _how_text(tensor: Tensor, reduction: Reduction) -> str:
    """What each rank does by itself with what was gathered, for the ranks to compare."""
    dtype, compression = tensor.dtype.base_dtype.name, describe(reduction.compression)
    return f"{dtype} op={reduction.op} compression={compression}"


def _compressed(tensor: Tensor, reduction: Reduction, key: Any) -> Tensor:
    op = reduction.op
    if op not in (Average, Sum):
        raise ValueError(f"this compression takes op=Average or Sum, not {op}")
    if not tensor.dtype.is_floating:
        return ops.allreduce([tensor], reduction)[0]
    if not tensor.shape.is_fully_defined():
        raise ValueError(
            f"this compression needs a shape that is known when the function is traced, not "
            f"{tensor.shape}; use Compression.none, .fp16 or .bf16"
        )
    gather = _gatherer(reduction.comparing(_how_text(tensor, reduction)))
    return reduction.compression.reduce(tensor, op == Average, key, gather)


def _adasum(tensor: Tensor, reduction: Reduction, key: Any) -> Tensor:
    del key
    if not tensor.dtype.is_floating:
        raise TypeError(f"Adasum takes floating-point tensors, not {tensor.dtype.name}")
    name, group = reduction.name, reduction.group
    gather = _gatherer(reduction.comparing(_how_text(tensor, reduction)))

    def agree(products: Tensor) -> Tensor:
        return ops.broadcast([products], group.ranks[0], f"{name}.products", group)[0]

    packed, context = reduction.compression.compress(tensor)
    if packed.shape.rank is not None:
        return reduction.compression.decompress(adasum(gather(packed), agree), context)
    flat = adasum(gather(tf.reshape(packed, [-1])), agree)  # what is stacked has a known rank
    return reduction.compression.decompress(tf.reshape(flat, tf.shape(packed)), context)
