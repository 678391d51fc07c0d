"""DistributedOptimizer: any TensorFlow optimizer, its gradients those of all ranks together."""

import warnings

from smddp_tf import _reduce, _runtime
from smddp_tf._compression import Compression
from smddp_tf._reduce_op import Average
from smddp_tf.keras import _distribution, _keras2, _keras3, _v1

# Arguments that scripts bring from elsewhere, and where they belong.
_ELSEWHERE = {
    "use_locking": "to the tf.compat.v1 optimizer itself",
    "learning_rate": "to the optimizer that is wrapped",
    "local_layers": "to PartialDistributedOptimizer",
    "bucket_cap_mb": "to smdistributed's names; here it is bucket_bytes",
    "average": "to allreduce; here it is op=Average or op=Sum",
    "prescale_factor": "to allreduce; here it is gradient_predivide_factor",
    "postscale_factor": "to allreduce; here it is gradient_predivide_factor",
    "named_parameters": "to other frameworks",
}


def refuse_unknown(unknown) -> None:
    """Refuses arguments by name.

    Raises:
      TypeError: there is one.
    """
    for name in unknown:
        where = f": it belongs {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
        raise TypeError(f"DistributedOptimizer takes no argument {name!r}{where}")


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer,
    name=None,
    device_dense="",
    device_sparse="",
    compression=Compression.none,
    sparse_as_dense=False,
    gradient_predivide_factor=1.0,
    op=Average,
    backward_passes_per_step=1,
    average_aggregated_gradients=False,
    num_groups=0,
    groups=None,
    process_set=_runtime.global_process_set,
    scale_local_gradients=True,
    bucket_bytes=0,
    **unknown,
):
    """Makes an optimizer reduce its gradients over all ranks before it applies them.

    Args:
      optimizer: of Keras 3, tf_keras or Keras 2 (either style), TensorFlow Addons, or
        tf.compat.v1.train; also a LossScaleOptimizer around one.
      name: for messages; default is the class's name.
      device_dense: accepted for old scripts; reductions run on the CPU.
      device_sparse: as device_dense.
      compression: Compression.none, .fp16, .bf16, .int8 or .topk(ratio), or a compressor of your
        own.
      sparse_as_dense: reduce tf.IndexedSlices as dense tensors instead of gathering rows.
      gradient_predivide_factor: with Average: divides by this before the sum, and by size() over
        this after it.
      op: Average (the default), Sum, Adasum, Min, Max or Product.
      backward_passes_per_step: gradients of so many calls are added up, and reduced and applied
        once. In Keras 3 this sets gradient_accumulation_steps.
      average_aggregated_gradients: divide that sum by backward_passes_per_step.
      num_groups: > 0: reduce in so many groups instead of buckets by size.
      groups: a list of lists of variables that are reduced together, or a number as num_groups.
      process_set: the ranks that take part.
      scale_local_gradients: divide the gradients of variables given to
        optimizer.register_local_var() by the number of ranks.
      bucket_bytes: about the size of the buckets in which gradients are reduced; 0: that of
        SMDDP_BUCKET_BYTES.
      **unknown: refused by name.

    Returns:
      The same object. Its class, configuration, slots and saved files are what they were, so a
      model saved with it loads without this library.

    Raises:
      TypeError: it is no optimizer, or an argument is unknown.
      ValueError: before init(), it is wrapped already, or arguments contradict each other.
    """
    refuse_unknown(unknown)
    if device_dense or device_sparse:
        warnings.warn("device_dense and device_sparse have no effect", stacklevel=2)
    _runtime.check_process_set(process_set)
    if isinstance(groups, int):
        num_groups, groups = groups, None
    if int(backward_passes_per_step) < 1:
        raise ValueError(f"backward_passes_per_step={backward_passes_per_step} is not >= 1")
    target = _distribution.innermost(optimizer)
    if _distribution.of(target) is not None:
        raise ValueError(
            "this optimizer is distributed already; its gradients would be reduced twice. Wrap it "
            "once, and do not wrap the optimizer of a model that load_model() returned"
        )
    kinds = [kind for kind in (_v1, _keras3, _keras2) if kind.fits(target)]
    if not kinds:
        raise TypeError(
            f"DistributedOptimizer got {optimizer!r}; it takes an optimizer object of Keras 3, "
            "tf_keras, Keras 2, TensorFlow Addons or tf.compat.v1.train"
        )
    options = _reduce.ReduceOptions(
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=float(gradient_predivide_factor),
        num_groups=num_groups,
        groups=groups,
        name=name or f"Distributed{type(target).__name__}",
        process_set=process_set,
        bucket_bytes=int(bucket_bytes),
    )
    distribution = _distribution.Distribution(
        options,
        passes=int(backward_passes_per_step),
        average_passes=average_aggregated_gradients,
        scale_local=scale_local_gradients,
    )
    kinds[0].install(target, distribution)
    setattr(target, _distribution.ATTRIBUTE, distribution)
    for wrapped in {id(optimizer): optimizer, id(target): target}.values():
        wrapped.register_local_var = distribution.register_local_var
    return optimizer


def built_layers(layers) -> list:
    """A layer or a list of them, as a list.

    Raises:
      ValueError: a layer has no variables yet.
    """
    layers = [] if layers is None else layers
    layers = list(layers) if isinstance(layers, (list, tuple)) else [layers]
    for layer in layers:
        if not layer.trainable_weights:
            raise ValueError(
                f"local layer {layer.name!r} has no trainable weights yet; build the model first"
            )
    return layers


def PartialDistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer, *args, local_layers=None, scale_local_gradients=True, **kwargs
):
    """DistributedOptimizer, but the gradients of some layers stay local.

    Args:
      optimizer: as for DistributedOptimizer, like all other arguments.
      *args: as for DistributedOptimizer.
      local_layers: a Keras layer or a list of them, built; their variables keep local gradients.
      scale_local_gradients: divide those by the number of ranks.
      **kwargs: as for DistributedOptimizer.

    Returns:
      The same object.

    Raises:
      ValueError: a layer has no variables yet.
    """
    layers = built_layers(local_layers)
    optimizer = DistributedOptimizer(
        optimizer, *args, scale_local_gradients=scale_local_gradients, **kwargs
    )
    for layer in layers:
        for variable in layer.trainable_weights:
            optimizer.register_local_var(variable)
    return optimizer
