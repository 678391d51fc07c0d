"""DistributedOptimizer: makes any TensorFlow optimizer reduce its gradients over all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from smddp_tf._src.collectives.checks import ignore_devices
from smddp_tf._src.compression import Compression
from smddp_tf._src.gradients.options import ReduceOptions, whole_number
from smddp_tf._src.job.process_sets import (
    ProcessSet,
    check_process_set,
    global_process_set,
    is_outside,
)
from smddp_tf._src.job.reduce_op import Average, ReduceOp
from smddp_tf._src.types import Compressor
from smddp_tf.keras import _distribution, _hooks, _local_steps, _traced

# Arguments of other libraries and functions, and where they belong; used in error messages.
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


def refuse_unknown(unknown: Iterable[str]) -> None:
    """Rejects unknown keyword arguments.

    Raises:
      TypeError: unknown is not empty.
    """
    for name in unknown:
        where = f": it belongs {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
        raise TypeError(f"DistributedOptimizer takes no argument {name!r}{where}")


def _check_is_object(optimizer: Any) -> Any:
    """Returns the optimizer if it is an instance of a supported class.

    Raises:
      TypeError: it is a class, or not a supported optimizer.
    """
    if isinstance(optimizer, type):
        raise TypeError(
            f"DistributedOptimizer got the class {optimizer.__name__}; give it an object: "
            f"DistributedOptimizer({optimizer.__name__}(...))"
        )
    if _hooks.kind_of(_distribution.innermost(optimizer)) is None:
        raise TypeError(
            f"DistributedOptimizer got {optimizer!r}; it takes an optimizer object of Keras 3, "
            "tf_keras, Keras 2, TensorFlow Addons or tf.compat.v1.train"
        )
    return optimizer


def _refuse_without_sync_every(**given: bool) -> None:
    """Rejects arguments that mean nothing where gradients are averaged.

    Args:
      **given: whether an argument was given.

    Raises:
      ValueError: one was.
    """
    for name, is_given in given.items():
        if is_given:
            raise ValueError(f"{name} needs sync_every, the number of updates between exchanges")


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp | int | None = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Any] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    bucket_bytes: int = 0,
    sync_every: int | None = None,
    outer_optimizer: Any = None,
    fragments: int = 1,
    should_quantize: bool = False,
    fragment_sync_delay: int = 0,
    fragment_update_alpha: float = 0.0,
    shard_state: bool = False,
    **unknown: Any,
) -> Any:
    """Makes an optimizer reduce its gradients over all ranks before it applies them.

    Args:
      optimizer: an optimizer of Keras 3, tf_keras or Keras 2 (either style), TensorFlow Addons, or
        tf.compat.v1.train, or a LossScaleOptimizer around one.
      name: identifies the reductions in messages; default: "Distributed" and the class name.
      device_dense: ignored, accepted for compatibility; reductions run on the CPU.
      device_sparse: same as device_dense.
      compression: Compression.none, .fp16, .bf16, .int8 or .topk(ratio), or a compressor of your
        own.
      sparse_as_dense: reduce tf.IndexedSlices as dense tensors instead of gathering rows.
      gradient_predivide_factor: with Average: divide gradients by this factor before the sum, and
        by size() / factor after it.
      op: Average (the default), Sum, Adasum, Min, Max or Product. Sum is for losses with
        reduction="sum"; it sums regularizers and add_loss() too, so divide those by size().
      backward_passes_per_step: the number of calls whose gradients are accumulated before they are
        reduced and applied once. In Keras 3 this sets gradient_accumulation_steps. In a TF1 graph
        the sums are local variables, so run local_variables_initializer() too. An optimizer
        that was loaded from a file or configuration of one with this setting (see load_model)
        keeps it.
      average_aggregated_gradients: divide the accumulated sum by backward_passes_per_step.
      num_groups: if > 0, the number of groups to reduce in, instead of buckets by size.
      groups: a list of lists of variables to reduce together, or a number, same as num_groups.
      process_set: the ranks that take part. On other ranks the optimizer is returned as it is,
        without a backward_passes_per_step.
      scale_local_gradients: divide the gradients of variables given to
        optimizer.register_local_var() by the number of ranks.
      bucket_bytes: approximate size of the gradient buckets, in bytes; 0: SMDDP_BUCKET_BYTES.
      sync_every: None: the gradients of every step are averaged. A number: each rank trains alone,
        and after so many updates the ranks average how far their weights have come
        (docs/low-communication.md). The optimizer then has a method synchronize().
      outer_optimizer: with sync_every: an optimizer of the same Keras, which updates the weights by
        that average. Default: SGD(0.7, momentum=0.9, nesterov=True).
      fragments: with sync_every: into how many parts the weights are divided; each is sent at a
        step of its own.
      should_quantize: with sync_every: the same as compression=Compression.int8.
      fragment_sync_delay: with sync_every: an exchange may take so many updates, during which
        training goes on.
      fragment_update_alpha: with fragment_sync_delay: the share that a rank's own weights keep when
        an exchange arrives. With 0 they are replaced.
      shard_state: True: divide the optimizer's state among the ranks (ZeRO stage 1). Each rank
        keeps the slots of its part of the variables and updates that; then the ranks gather the
        weights. See docs/sharded-optimizer.md for saving, and for what cannot be divided.
      **unknown: rejected by name.

    Returns:
      The same object. Its class, configuration, slots and saved files are unchanged, so a model
      saved with it loads without this library. If it has already trained, the models that use it
      retrace their train step, and a RuntimeWarning names other functions that were traced with
      it.

    Raises:
      TypeError: optimizer is a class or not an optimizer, or an argument is unknown or has the
        wrong type.
      ValueError: init() was not called, the optimizer is already wrapped, arguments contradict
        each other, or shard_state=True cannot divide the state of this optimizer.

    Examples:
      >>> optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1 * hvd.size()))
      >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
      >>> model.compile(optimizer, loss="mse")
      >>> start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
      >>> _ = model.fit(tf.ones([8, 2]), tf.ones([8, 1]), callbacks=[start], verbose=0)
    """
    refuse_unknown(unknown)
    ignore_devices(device_dense=device_dense, device_sparse=device_sparse)
    passes = whole_number("backward_passes_per_step", backward_passes_per_step, 1)
    if passes > 1 or not is_outside(process_set):
        check_process_set(process_set)
    if not isinstance(shard_state, bool):
        raise TypeError(f"shard_state={shard_state!r} is not True or False")
    target = _distribution.innermost(_check_is_object(optimizer))
    if _distribution.of(target) is not None:
        raise ValueError(
            "this optimizer is distributed already; its gradients would be reduced twice. Wrap it "
            "once, and do not wrap the optimizer of a model that load_model() returned"
        )

    saved, average_passes = _hooks.restore_accumulation(target), bool(average_aggregated_gradients)
    if saved is not None and passes == 1:
        passes, average_passes = saved[0], average_passes or saved[1]
    accumulation = f"passes={passes} average_passes={average_passes}" if passes > 1 else ""

    if should_quantize and compression is not Compression.none:
        raise ValueError(
            "give should_quantize=True or compression=, not both; should_quantize is "
            "Compression.int8"
        )
    options = ReduceOptions(
        op=op,
        compression=Compression.int8 if should_quantize else compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        name=name or f"Distributed{type(target).__name__}",
        process_set=process_set,
        bucket_bytes=bucket_bytes,
        accumulation=accumulation,
    )

    distribution: _distribution.ReductionState
    if sync_every is None:
        _refuse_without_sync_every(
            outer_optimizer=outer_optimizer is not None,
            fragments=fragments != 1,
            should_quantize=bool(should_quantize),
            fragment_sync_delay=fragment_sync_delay != 0,
            fragment_update_alpha=fragment_update_alpha != 0,
        )
        distribution = _distribution.ReductionState(
            options,
            passes=passes,
            average_passes=average_passes,
            scale_local=scale_local_gradients,
            shard_state=shard_state,
        )
    elif shard_state:
        raise ValueError(
            "shard_state=True divides a state that all ranks have alike, but with sync_every each "
            "rank has its own; give one of the two"
        )
    else:
        rounds = _local_steps.rounds_of(
            target,
            sync_every,
            outer_optimizer,
            fragments,
            fragment_sync_delay,
            fragment_update_alpha,
        )
        distribution = _local_steps.LocalSteps(
            options, rounds, passes=passes, average_passes=average_passes
        )

    if is_outside(process_set):
        return optimizer
    _traced.forget(target)
    _hooks.attach(optimizer, distribution)
    return optimizer


def built_layers(layers: Any) -> list[Any]:
    """Returns a layer or a list of layers as a list, after checking that all are built.

    A built layer may have none, as RepeatVector.

    Raises:
      TypeError: an item is not a layer.
      ValueError: a layer has no trainable weights yet.
    """
    layers = [] if layers is None else layers
    layers = list(layers) if isinstance(layers, (list, tuple)) else [layers]
    for layer in layers:
        if not hasattr(layer, "trainable_weights"):
            raise TypeError(f"local_layers has {layer!r}, which is not a Keras layer")
        if not layer.trainable_weights and not layer.built:
            raise ValueError(
                f"local layer {layer.name!r} has no trainable weights yet; build the model first"
            )
    return layers


def PartialDistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    *args: Any,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    **kwargs: Any,
) -> Any:
    """DistributedOptimizer, but the gradients of some layers stay local.

    Args:
      optimizer: same as for DistributedOptimizer.
      *args: same as for DistributedOptimizer.
      local_layers: a built Keras layer or a list of them; their gradients stay local.
      scale_local_gradients: divide local gradients by the number of ranks.
      **kwargs: same as for DistributedOptimizer.

    Returns:
      The same object.

    Raises:
      ValueError: a layer has no trainable weights yet.

    Examples:
      >>> adapter = tf.keras.layers.Dense(2)  # each rank trains its own
      >>> adapter.build([None, 4])
      >>> optimizer = tf.keras.optimizers.SGD(0.1)
      >>> optimizer = hvd.PartialDistributedOptimizer(optimizer, local_layers=[adapter])
    """
    layers = built_layers(local_layers)
    kwargs["scale_local_gradients"] = scale_local_gradients
    optimizer = DistributedOptimizer(optimizer, *args, **kwargs)
    if _distribution.of(_distribution.innermost(optimizer)) is None:  # outside of the process set
        return optimizer
    for layer in layers:
        for variable in layer.trainable_weights:
            optimizer.register_local_var(variable)
    return optimizer
