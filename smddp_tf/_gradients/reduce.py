"""Reduces a step's gradients: compresses them, makes the bucket plan, and emits its ops."""

from collections.abc import Sequence

from smddp_tf._collectives.allreduce import grouped_allreduce
from smddp_tf._collectives.checks import REDUCIBLE, check_dtype
from smddp_tf._collectives.reduction import bypasses_plan, gather_and_combine
from smddp_tf._collectives.slices import allreduce_slices, gathers_in_jit
from smddp_tf._gradients.options import ReduceOptions
from smddp_tf._graph import ops, order, plan_ops, xla
from smddp_tf._graph.framework import tensorflow
from smddp_tf._graph.names import site_name
from smddp_tf._job import config
from smddp_tf._job.enums import Matching
from smddp_tf._job.process_sets import Group, ProcessSet, check_process_set
from smddp_tf._job.reduce_op import Max
from smddp_tf._plan.buckets import GradientSpec, make_plan, normal_names

tf = tensorflow()


def source_name(source, index: int) -> str:
    """The name of a gradient's source in plans and messages."""
    for attribute in ("path", "name"):
        name = getattr(source, attribute, None)
        if isinstance(name, str) and name:
            return name
    return f"source{index}"


def _spec(grad, name: str) -> GradientSpec:
    if grad is None:
        return GradientSpec(name, "", (), 0, "none")
    if isinstance(grad, tf.IndexedSlices):
        return GradientSpec(name, grad.dtype.name, tuple(grad.values.shape[1:]), 0, "sparse")
    shape = tuple(grad.shape.as_list()) if grad.shape.rank is not None else (None,)
    count = grad.shape.num_elements() or 0
    return GradientSpec(name, grad.dtype.base_dtype.name, shape, count * grad.dtype.size)


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


def reduce_dense(grads: list, specs: list, options: ReduceOptions, groups, group: Group) -> list:
    """Reduces the dense gradients of grads and returns the others unchanged.

    `groups` are the gradients that the script wants to be reduced together, `group` the ranks.
    """
    op, prescale, postscale = options.scales()
    plan = _plan(specs, options, groups)
    results = list(grads)
    if xla.inside_jit():
        return _reduce_in_jit(results, specs, plan, options, group)
    if order.matching() != Matching.IN_ORDER:
        return _reduce_by_name(results, specs, plan, options, group)

    run = plan_ops.plan_begin(plan, options.name, group)
    tokens, earlier = [], []
    for bucket, indices in enumerate(plan.buckets):
        tensors = [grads[i] for i in indices]
        outputs, token, earlier = plan_ops.plan_bucket(
            run, tensors, earlier, bucket, op, prescale, postscale, options.name, group
        )
        tokens.append(token)
        for i, output in zip(indices, outputs, strict=True):
            results[i] = output
    plan_ops.plan_end(run, tokens, group)
    return results


def _reduce_by_name(grads, specs, plan, options: ReduceOptions, group: Group) -> list:
    """Reduces each bucket with its own allreduce: without a program order, plans cannot begin."""
    for bucket, indices in enumerate(plan.buckets):
        outputs = ops.allreduce(
            [grads[i] for i in indices],
            *options.scales(),
            f"{options.name}.{bucket}",
            group,
            description=plan.description,
        )
        for i, output in zip(indices, outputs, strict=True):
            grads[i] = output
    return grads


def _reduce_in_jit(grads, specs, plan, options: ReduceOptions, group: Group) -> list:
    """One allreduce per dtype: inside XLA, buckets would not overlap with anything."""
    by_dtype: dict = {}
    for i, spec in enumerate(specs):
        if spec.kind == "dense":
            by_dtype.setdefault(spec.dtype, []).append(i)
    for dtype, indices in by_dtype.items():
        tensors = [grads[i] for i in indices]
        name = f"{options.name}.{dtype}"
        outputs = ops.allreduce(
            tensors, *options.scales(), name, group, description=plan.description
        )
        for i, output in zip(indices, outputs, strict=True):
            grads[i] = output
    return grads


def _densified(slices, source, options: ReduceOptions, group: Group):
    """Converts slices to a dense tensor if they are to be reduced as one.

    XLA needs static shapes: inside jit, rows are gathered only if their number is static and if
    that moves less data than reducing the whole table.
    """
    if not options.sparse_as_dense and not xla.inside_jit():
        return slices
    shape = tf.TensorShape(getattr(source, "shape", None))
    rows = shape[0] if shape.rank else None
    if not options.sparse_as_dense and gathers_in_jit(slices, group.size, rows):
        return slices
    return tf.convert_to_tensor(slices)


def _tensor_of(grad, source):
    """The gradient as a tensor: a script may give an optimizer arrays."""
    if grad is None or tf.is_tensor(grad):
        return grad
    return tf.convert_to_tensor(grad, getattr(source, "dtype", None))


def reduce_gradients(grads: Sequence, sources: Sequence, options: ReduceOptions) -> list:
    """Reduces a list of gradients over the ranks of options.process_set.

    Args:
      grads: tensors, tf.IndexedSlices or None, in the order of the sources.
      sources: the variables or tensors they are gradients of; used for names and groups.
      options: how to reduce them.

    Returns:
      The reduced gradients; None stays None.

    Raises:
      tf.errors.FailedPreconditionError: the ranks' gradients differ in number, kind, shape, dtype
        or options; the message names the gradient.
    """
    group = check_process_set(options.process_set)
    if group.size == 1:
        return list(grads)

    options = options.named(site_name(options.name, group))
    grads = [_tensor_of(grad, source) for grad, source in zip(grads, sources, strict=True)]
    grads = [
        _densified(grad, source, options, group) if isinstance(grad, tf.IndexedSlices) else grad
        for grad, source in zip(grads, sources, strict=True)
    ]

    names = [source_name(source, i) for i, source in enumerate(sources)]
    if bypasses_plan(options.op, options.compression):
        return _reduce_each_alone(grads, sources, names, options, group)

    packed, contexts = [], []
    for grad in grads:
        dense = grad is not None and not isinstance(grad, tf.IndexedSlices)
        if dense:
            check_dtype(grad, REDUCIBLE, "reducing a gradient")
        tensor, context = options.compression.compress(grad) if dense else (grad, None)
        packed.append(tensor)
        contexts.append(context)

    specs = [_spec(grad, name) for grad, name in zip(packed, names, strict=True)]
    reduced = reduce_dense(packed, specs, options, _group_indices(options, sources), group)

    for i, grad in enumerate(reduced):
        if isinstance(grad, tf.IndexedSlices):
            reduced[i] = allreduce_slices(grad, options.op, f"{options.name}.{i}", group)
        elif grad is not None:
            reduced[i] = options.compression.decompress(grad, contexts[i])
    return reduced


def _reduce_each_alone(grads, sources, names, options: ReduceOptions, group: Group) -> list:
    """Reduces gradients with Adasum or a compressor's reduce(): no plan, so no overlap.

    The ranks compare all gradients with the first one that they reduce, as they would their plans.
    """
    specs = [_spec(grad, name) for grad, name in zip(grads, names, strict=True)]
    results, compared = [], _plan(specs, options, _group_indices(options, sources)).description
    for grad, source, name in zip(grads, sources, normal_names(names), strict=True):
        named = f"{options.name} {name}"
        if isinstance(grad, tf.IndexedSlices):
            grad = allreduce_slices(grad, options.op, named, group, compared)
        elif grad is not None:
            check_dtype(grad, REDUCIBLE, "reducing a gradient")
            how = options.op, options.compression
            grad = gather_and_combine(grad, *how, named, _reference(source), group, compared)
        results.append(grad)
        compared = compared if grad is None else ""
    return results


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


def _divided(grad, divisor: int):
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
    for i, source in enumerate(sources):
        if scale and identity(source) in local and results[i] is not None:
            results[i] = _divided(results[i], options.process_set.size())
    return results
