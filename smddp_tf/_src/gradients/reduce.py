"""Reduces a step's gradients: compresses them, makes the bucket plan, and emits its ops."""

import functools
import math
from collections.abc import Callable, Hashable, Sequence

from smddp_tf._src.collectives.allreduce import grouped_allreduce
from smddp_tf._src.collectives.carried import check_reducible, dtype_name, is_complex
from smddp_tf._src.collectives.reduction import by_dtype, is_dense, needs_gather, reduce_tensors
from smddp_tf._src.collectives.slices import gathers_in_jit
from smddp_tf._src.gradients.options import ReduceOptions
from smddp_tf._src.graph import ops, order, plan_ops, xla
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.graph.names import site_name
from smddp_tf._src.graph.ops.ranks import is_alone, size_in
from smddp_tf._src.job import config
from smddp_tf._src.job.enums import Matching
from smddp_tf._src.job.process_sets import ProcessGroup, ProcessSet, check_process_set
from smddp_tf._src.job.reduce_op import Max
from smddp_tf._src.job.reduction import Reduction
from smddp_tf._src.plan.buckets import GradientSpec, make_plan, normal_names

tf = tensorflow()

_OF_RANK = "tensorflow_recommenders_addons.dynamic_embedding"  # where classes of variables are


def source_name(source, index: int) -> str:
    """The name of a gradient's source in plans and messages."""
    for attribute in ("path", "name"):
        name = getattr(source, attribute, None)
        if isinstance(name, str) and name:
            return name
    return f"source{index}"


def _known(shape) -> tuple:
    """A static shape for the plan; (None,) if not even the number of dimensions is known."""
    return tuple(shape.as_list()) if shape.rank is not None else (None,)


def _spec(grad, name: str, parts_of: str) -> GradientSpec:
    if grad is None:
        return GradientSpec(name, "", (), 0, "none")
    if isinstance(grad, tf.IndexedSlices):
        shape = _known(grad.values.shape[1:])
        return GradientSpec(name, grad.dtype.name, shape, 0, "sparse", parts_of)
    shape = _known(grad.shape)
    nbytes = 0 if None in shape else math.prod(shape) * grad.dtype.size
    return GradientSpec(name, dtype_name(grad), shape, nbytes, "dense", parts_of)


def _group_indices(options: ReduceOptions, sources: Sequence) -> list | None:
    """Translates `groups` from lists of variables to lists of indices into sources."""
    if options.groups is None:
        return None
    index = {identity(source): i for i, source in enumerate(sources)}
    return [
        [index[identity(variable)] for variable in group if identity(variable) in index]
        for group in options.groups
    ]


def _plan(specs: list, options: ReduceOptions, groups):
    settings = config.load()
    return make_plan(
        specs,
        bucket_bytes=options.bucket_bytes or settings.bucket_bytes,
        first_bucket_bytes=settings.first_bucket_bytes,
        num_groups=options.num_groups,
        groups=groups,
        options=options.in_plan(),
    )


def _emit_planned(grads: list, plan, reduction: Reduction) -> list:
    """Reduces dense gradients in the buckets of a plan, and returns the others unchanged."""
    if xla.inside_jit():
        return _emit_in_jit(grads, plan, reduction)
    results = list(grads)
    emit = _buckets_in_order if order.matching() == Matching.IN_ORDER else _buckets_by_name
    reduced = emit([[grads[i] for i in bucket] for bucket in plan.buckets], plan, reduction)
    for indices, outputs in zip(plan.buckets, reduced, strict=True):
        for i, output in zip(indices, outputs, strict=True):
            results[i] = output
    return results


def _buckets_in_order(buckets: list, plan, reduction: Reduction) -> list:
    """A run of the plan: each bucket starts when its gradients exist."""
    run = plan_ops.plan_begin(plan, reduction.name, reduction.group)
    results: list = []
    tokens: list = []
    earlier: list = []
    for number, tensors in enumerate(buckets):
        outputs, token, earlier = plan_ops.plan_bucket(run, tensors, earlier, number, reduction)
        results.append(outputs)
        tokens.append(token)
    plan_ops.plan_end(run, tokens, reduction.group)
    return results


def _buckets_by_name(buckets: list, plan, reduction: Reduction) -> list:
    """An allreduce for each bucket: without a program order, plans cannot begin."""
    reduction = reduction.comparing(plan.description)
    return [
        ops.allreduce(tensors, reduction.named(f"{reduction.name}.{number}"))
        for number, tensors in enumerate(buckets)
    ]


def _emit_in_jit(grads: list, plan, reduction: Reduction) -> list:
    """One allreduce per dtype: inside XLA, buckets would not overlap with anything."""
    results = list(grads)
    reduction = reduction.comparing(plan.description)
    for indices in by_dtype(grads):
        dtype = grads[indices[0]].dtype.base_dtype.name
        named = reduction.named(f"{reduction.name}.{dtype}")
        outputs = ops.allreduce([grads[i] for i in indices], named)
        for i, output in zip(indices, outputs, strict=True):
            results[i] = output
    return results


def _declared_shape(source):
    return tf.TensorShape(getattr(source, "shape", None))


def _densified(slices, source, options: ReduceOptions, group: ProcessGroup):
    """Converts slices to a dense tensor if they are to be reduced as one.

    XLA needs static shapes: inside jit, rows are gathered only if their number is static and if
    that moves less data than reducing the whole table.
    """
    if not options.sparse_as_dense and not xla.inside_jit():
        return slices
    shape = _declared_shape(source)
    rows = shape.as_list()[0] if shape.rank else None
    if not options.sparse_as_dense and gathers_in_jit(slices, group.size, rows):
        return slices
    return tf.convert_to_tensor(slices)


def _of_static_shape(grad, source):
    """The gradient, with its source's static shape where its own is not known.

    TensorFlow loses it where a layer's input has several unknown dimensions, as Dense's on
    sequences of any length. The plan needs sizes, and XLA shapes; another rank may know them.
    """
    known = grad.shape if is_dense(grad) else grad.values.shape[1:]
    if known.is_fully_defined():
        return grad
    shape = _declared_shape(source)
    if not shape.is_fully_defined():
        return grad
    if is_dense(grad):
        return tf.ensure_shape(grad, shape)
    values = tf.ensure_shape(grad.values, [None, *shape[1:]])
    return tf.IndexedSlices(values, grad.indices, grad.dense_shape)


def _reducible(grad, source, options: ReduceOptions, group: ProcessGroup):
    """The gradient in the form in which it is reduced: a tensor, slices or None.

    Raises:
      TypeError: its dtype cannot be reduced.
    """
    if grad is None:
        return None
    if isinstance(grad, tf.IndexedSlices):
        grad = _densified(grad, source, options, group)
    elif not tf.is_tensor(grad):  # a script may give an optimizer arrays
        grad = tf.convert_to_tensor(grad, getattr(source, "dtype", None))
    if is_dense(grad):
        check_reducible(grad, options.op, "reducing a gradient")
    return grad if tf.executing_eagerly() else _of_static_shape(grad, source)


def reduce_gradients(
    grads: Sequence, sources: Sequence, options: ReduceOptions, emit: Callable | None = None
) -> list:
    """Reduces a list of gradients over the ranks of options.process_set.

    Args:
      grads: tensors, tf.IndexedSlices or None, in the order of the sources.
      sources: the variables or tensors they are gradients of; used for names and groups.
      options: how to reduce them.
      emit: emit(grads, plan, reduction) reduces the dense ones; None: each rank gets all of them.

    Returns:
      The reduced gradients; None stays None.

    Raises:
      tf.errors.FailedPreconditionError: the ranks' gradients differ in number, kind, shape, dtype
        or options; the message names the gradient.
    """
    group = check_process_set(options.process_set)
    if is_alone(group):
        return list(grads)

    reduction = options.reduction(site_name(options.name, group), group)
    grads = [
        _reducible(grad, source, options, group)
        for grad, source in zip(grads, sources, strict=True)
    ]
    names = [source_name(source, i) for i, source in enumerate(sources)]
    complex_ones = [
        dtype_name(grad) if grad is not None and is_complex(grad) else "" for grad in grads
    ]
    groups = _group_indices(options, sources)

    def plan_of(grads):
        of_each = zip(grads, names, complex_ones, strict=True)
        specs = [_spec(grad, name, parts_of) for grad, name, parts_of in of_each]
        return _plan(specs, options, groups)

    emit = emit or _emit_planned
    first, keys = None, [None] * len(names)
    if needs_gather(reduction):
        keys = [_reference(source) for source in sources]
        # No plan, so ranks compare all gradients with the first one that they reduce.
        first = next((i for i, grad in enumerate(grads) if grad is not None), None)

    numbered = functools.cache(lambda: normal_names(names))  # most calls reduce none alone

    def alone(i: int) -> Reduction:
        own = reduction.named(f"{reduction.name} {numbered()[i]}")
        return own.comparing(plan_of(grads).description) if i == first else own

    return reduce_tensors(
        grads,
        reduction,
        alone,
        keys,
        lambda packed, reduction: emit(packed, plan_of(packed), reduction),
    )


def _reference(source):
    """A hashable key that keeps the source alive, so that its identity is never reused."""
    return getattr(source, "_value", source).ref()


def identity(source) -> int:
    """The identity of a variable; a Keras 3 variable and the tf.Variable inside it share one."""
    return id(getattr(source, "_value", source))


def local_source(source) -> int:
    """The identity of what is to keep its gradient.

    Raises:
      TypeError: it is neither a variable nor a tensor.
    """
    if not hasattr(source, "shape") or not hasattr(source, "dtype"):
        raise TypeError(
            f"{source!r} cannot keep its gradient local: register a variable or a tensor, one in "
            "each call"
        )
    return identity(source)


def kept_by_libraries(sources: Sequence) -> set[int]:
    """identity() of the variables that a library keeps for this rank alone.

    NVIDIA's distributed-embeddings marks those that it divides among the ranks. TensorFlow
    Recommenders Addons has classes for what a rank holds of a table.
    """
    return {
        identity(source)
        for source in sources
        if hasattr(source, "de_local") or _is_of_rank(*type(source).__mro__)
    }


@functools.cache  # asked for each variable in each eager step
def _is_of_rank(*kinds: Hashable) -> bool:
    return any(_OF_RANK in kind.__module__ for kind in kinds)


def _divided(grad, divisor):
    if isinstance(grad, tf.IndexedSlices):
        values = grad.values / tf.cast(divisor, grad.values.dtype)
        return tf.IndexedSlices(values, grad.indices, grad.dense_shape)
    return grad / tf.cast(divisor, grad.dtype)


def _is_overwritten(source) -> bool:
    """Whether Keras 3 assigns a variable its gradient: the ranges and scales of float8 layers."""
    return getattr(source, "overwrite_with_gradient", False)


def reduce_overwriting(grads, sources, process_set: ProcessSet) -> list:
    """Replaces gradients that overwrite their variables by their largest value on any rank.

    Keras does the same with those of several passes: a range must hold the values of all ranks.
    Other gradients are returned unchanged.
    """
    results = list(grads)
    found = [
        i for i, source in enumerate(sources) if _is_overwritten(source) and results[i] is not None
    ]
    if found:
        largest = grouped_allreduce([results[i] for i in found], op=Max, process_set=process_set)
        for i, value in zip(found, largest, strict=True):
            results[i] = value
    return results


def reduce_all_but_local(grads, sources, options: ReduceOptions, local: set, scale: bool) -> list:
    """Reduces gradients, except for sources whose gradients stay local.

    Those that overwrite their variables are reduced by reduce_overwriting(), all others by
    reduce_gradients().

    Args:
      grads: same as for reduce_gradients().
      sources: same as for reduce_gradients().
      options: same as for reduce_gradients().
      local: identity() of the sources whose gradients stay local.
      scale: divide their gradients by the number of ranks.

    Returns:
      All gradients, in the order of the sources.
    """
    not_local = [i for i, source in enumerate(sources) if identity(source) not in local]
    shared = [i for i in not_local if not _is_overwritten(sources[i])]
    reduced = reduce_gradients([grads[i] for i in shared], [sources[i] for i in shared], options)
    results = list(grads)
    if len(shared) < len(not_local):
        pairs = [grads[i] for i in not_local], [sources[i] for i in not_local]
        overwriting = reduce_overwriting(*pairs, options.process_set)
        for i, value in zip(not_local, overwriting, strict=True):
            results[i] = value
    for i, grad in zip(shared, reduced, strict=True):
        results[i] = grad
    scaled = [i for i, source in enumerate(sources) if scale and identity(source) in local]
    if scaled:
        divisor = size_in(check_process_set(options.process_set), options.name)
    for i in scaled:
        if results[i] is not None:
            results[i] = _divided(results[i], divisor)
    return results
