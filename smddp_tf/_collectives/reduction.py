"""Maps reductions to ops: one op per dtype, and gathers for Adasum and non-summable compressors."""

from __future__ import annotations

from smddp_tf._collectives.scaling import scale_apart, scaled
from smddp_tf._compression import Compression, check_compressor, describe
from smddp_tf._compression.adasum import adasum
from smddp_tf._graph import ops
from smddp_tf._graph.framework import tensorflow
from smddp_tf._job.process_sets import Group
from smddp_tf._job.reduce_op import Adasum, Average, ReduceOp, Sum

tf = tensorflow()


def words(*parts: str) -> str:
    """What ranks compare besides a request's tensors, made of texts that may be empty."""
    return " ".join(filter(None, parts))


def _gatherer(name: str, group: Group, description: str):
    """Returns a function that stacks all ranks' tensors along a new first dimension."""
    calls = iter(range(1 << 30))

    def gather(tensor):
        stacked = tensor[tf.newaxis]
        gathered = ops.allgather(stacked, f"{name}.{next(calls)}", group, description)
        gathered.set_shape([group.size, *tensor.shape.as_list()])
        return gathered

    return gather


def gather_and_combine(
    tensor, op: int, compression, name: str, key, group: Group, description: str = ""
):
    """Reduces one tensor with Adasum, or with a compressor that has reduce().

    Each rank combines what all have gathered by itself, so with what is gathered they compare how,
    and description, what else must be equal on all ranks.

    Raises:
      ValueError: such a compressor is combined with an op other than Average and Sum, or with a
        tensor whose static shape is unknown.
      TypeError: Adasum of integers.
    """
    how = f"{tensor.dtype.base_dtype.name} op={ReduceOp(op)} compression={describe(compression)}"
    gather = _gatherer(name, group, words(description, how))
    if hasattr(compression, "reduce"):
        if op not in (Average, Sum):
            raise ValueError(f"this compression takes op=Average or Sum, not {op}")
        if not tensor.dtype.is_floating:
            return reduce_dense([tensor], op, 1.0, 1.0, name, group, description)[0]
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


def places_text(indices: list, count: int) -> str:
    """Which tensors of a list one op reduces, for the ranks to compare; "" for all of them."""
    return "" if len(indices) == count else f"places {indices} of a list of {count}"


def compressor_text(compression) -> str:
    """A compressor, for the ranks to compare; "" for none."""
    return "" if compression is Compression.none else f"compression={describe(compression)}"


def bypasses_plan(op: int, compression) -> bool:
    """Whether gather_and_combine() handles it. Raises what check_compressor() raises."""
    check_compressor(compression)
    return op == Adasum or hasattr(compression, "reduce")


def reduce_dense(
    tensors: list,
    op: int,
    prescale: float,
    postscale: float,
    name: str,
    group: Group,
    description: str = "",
) -> list:
    """Reduces tensors of any dtypes, with one op per dtype; description is what ranks compare."""
    if group.size == 1:
        return [scaled(scaled(tensor, prescale), postscale) for tensor in tensors]

    results: list = [None] * len(tensors)
    by_dtype: dict = {}
    for i, tensor in enumerate(tensors):
        by_dtype.setdefault(tensor.dtype.base_dtype, []).append(i)
    for indices in by_dtype.values():
        places = places_text(indices, len(tensors))

        def reduce(tensors, op, prescale, postscale, apart, places=places):
            compared = words(places, apart, description)
            return ops.allreduce(tensors, op, prescale, postscale, name, group, compared)

        of_dtype = [tensors[i] for i in indices]
        reduced = scale_apart(reduce, of_dtype, op, prescale, postscale)
        for i, result in zip(indices, reduced, strict=True):
            results[i] = result
    return results
