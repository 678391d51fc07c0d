"""Maps reductions to ops: one op per dtype, and gathers for Adasum and non-summable compressors."""

from __future__ import annotations

from smddp_tf._collectives.scaling import scale_apart, scaled
from smddp_tf._compression import check_compressor
from smddp_tf._compression.adasum import adasum
from smddp_tf._graph import ops
from smddp_tf._graph.framework import tensorflow
from smddp_tf._job.process_sets import Group
from smddp_tf._job.reduce_op import Adasum, Average, Sum

tf = tensorflow()


def _gatherer(name: str, group: Group):
    """Returns a function that stacks all ranks' tensors along a new first dimension."""
    calls = iter(range(1 << 30))

    def gather(tensor):
        gathered = ops.allgather(tensor[tf.newaxis], f"{name}.{next(calls)}", group)
        gathered.set_shape([group.size, *tensor.shape.as_list()])
        return gathered

    return gather


def gather_and_combine(tensor, op: int, compression, name: str, key, group: Group):
    """Reduces one tensor with Adasum, or with a compressor that has reduce().

    Raises:
      ValueError: such a compressor is combined with an op other than Average and Sum, or with a
        tensor whose static shape is unknown.
      TypeError: Adasum of integers.
    """
    gather = _gatherer(name, group)
    if hasattr(compression, "reduce"):
        if op not in (Average, Sum):
            raise ValueError(f"this compression takes op=Average or Sum, not {op}")
        if not tensor.dtype.is_floating:
            return reduce_dense([tensor], op, 1.0, 1.0, name, group)[0]
        if not tensor.shape.is_fully_defined():
            raise ValueError(
                f"this compression needs a shape that is known when the function is traced, not "
                f"{tensor.shape}; use Compression.none, .fp16 or .bf16"
            )
        return compression.reduce(tensor, op == Average, key, gather)
    if not tensor.dtype.is_floating:
        raise TypeError(f"Adasum takes floating-point tensors, not {tensor.dtype.name}")

    def agree(products):
        return ops.broadcast([products], group.ranks[0], f"{name}.products", group)[0]

    packed, context = compression.compress(tensor)
    if packed.shape.rank is not None:
        return compression.decompress(adasum(gather(packed), agree), context)
    flat = adasum(gather(tf.reshape(packed, [-1])), agree)  # what is stacked has a known rank
    return compression.decompress(tf.reshape(flat, tf.shape(packed)), context)


def bypasses_plan(op: int, compression) -> bool:
    """Whether gather_and_combine() handles it. Raises what check_compressor() raises."""
    check_compressor(compression)
    return op == Adasum or hasattr(compression, "reduce")


def reduce_dense(
    tensors: list, op: int, prescale: float, postscale: float, name: str, group: Group
) -> list:
    """Reduces tensors of any dtypes, with one op per dtype."""
    if group.size == 1:
        return [scaled(scaled(tensor, prescale), postscale) for tensor in tensors]

    def reduce(tensors, op, prescale, postscale):
        return ops.allreduce(tensors, op, prescale, postscale, name, group)

    results: list = [None] * len(tensors)
    by_dtype: dict = {}
    for i, tensor in enumerate(tensors):
        by_dtype.setdefault(tensor.dtype.base_dtype, []).append(i)
    for indices in by_dtype.values():
        of_dtype = [tensors[i] for i in indices]
        reduced = scale_apart(reduce, of_dtype, op, prescale, postscale)
        for i, result in zip(indices, reduced, strict=True):
            results[i] = result
    return results
