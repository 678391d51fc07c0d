"""Keras-related names of Horovod's TensorFlow module, with that module's argument order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smddp_tf._src.collectives.variables import broadcast_global_variables
from smddp_tf._src.compression import Compression
from smddp_tf._src.gradients.tape import DistributedGradientTape
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job.process_sets import ProcessSet, global_process_set
from smddp_tf._src.job.reduce_op import Average, ReduceOp
from smddp_tf._src.types import Compressor, GradientTape, LoadedClass
from smddp_tf.keras import _optimizer

tf = tensorflow()


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp | int | None = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Any] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    **unknown: Any,
) -> Any:
    """smddp_tf.keras.DistributedOptimizer, with the arguments of Horovod's TensorFlow module.

    Args:
      optimizer: an optimizer of Keras or tf.compat.v1.train.
      name: same as for smddp_tf.keras.DistributedOptimizer.
      use_locking: ignored, accepted for compatibility; pass it to the tf.compat.v1 optimizer.
      device_dense: same as for smddp_tf.keras.DistributedOptimizer.
      device_sparse: same as for smddp_tf.keras.DistributedOptimizer.
      compression: same as for smddp_tf.keras.DistributedOptimizer.
      sparse_as_dense: same as for smddp_tf.keras.DistributedOptimizer.
      backward_passes_per_step: same as for smddp_tf.keras.DistributedOptimizer.
      op: same as for smddp_tf.keras.DistributedOptimizer.
      gradient_predivide_factor: same as for smddp_tf.keras.DistributedOptimizer.
      average_aggregated_gradients: same as for smddp_tf.keras.DistributedOptimizer.
      num_groups: same as for smddp_tf.keras.DistributedOptimizer.
      groups: same as for smddp_tf.keras.DistributedOptimizer.
      process_set: same as for smddp_tf.keras.DistributedOptimizer.
      scale_local_gradients: same as for smddp_tf.keras.DistributedOptimizer.
      **unknown: further arguments of smddp_tf.keras.DistributedOptimizer, which Horovod's has not:
        sync_every and what goes with it, bucket_bytes. Others are rejected by name.

    Returns:
      The same object.

    Examples:
      >>> optimizer = tf.keras.optimizers.SGD(0.1)
      >>> hvd.DistributedOptimizer(optimizer, op=hvd.Sum) is optimizer
      True
    """
    del use_locking
    return _optimizer.DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
        **unknown,
    )


def PartialDistributedGradientTape(  # noqa: N802 - Horovod's name
    gradtape: GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp | int | None = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Any] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """DistributedGradientTape, but the gradients of some layers stay local.

    Args:
      gradtape: same as for DistributedGradientTape.
      device_dense: same as for DistributedGradientTape.
      device_sparse: same as for DistributedGradientTape.
      compression: same as for DistributedGradientTape.
      sparse_as_dense: same as for DistributedGradientTape.
      op: same as for DistributedGradientTape.
      gradient_predivide_factor: same as for DistributedGradientTape.
      num_groups: same as for DistributedGradientTape.
      groups: same as for DistributedGradientTape.
      process_set: same as for DistributedGradientTape.
      local_layers: a built Keras layer or a list of them; their gradients stay local.
      scale_local_gradients: divide local gradients by the number of ranks.

    Returns:
      A tape whose class derives from gradtape's, same as DistributedGradientTape.

    Examples:
      >>> shared, local = tf.keras.layers.Dense(4), tf.keras.layers.Dense(2)
      >>> shared.build([None, 3])
      >>> local.build([None, 4])
      >>> with tf.GradientTape() as tape:
      ...     loss = tf.reduce_sum(local(shared(tf.ones([1, 3]))))
      >>> tape = hvd.PartialDistributedGradientTape(tape, local_layers=local)
      >>> gradients = tape.gradient(loss, shared.trainable_weights + local.trainable_weights)
      >>> len(gradients)
      4
    """
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    for layer in _optimizer.built_layers(local_layers):
        for variable in layer.trainable_weights:
            tape.register_local_source(variable)
    return tape


_Hook: LoadedClass = tf.compat.v1.train.SessionRunHook


class BroadcastGlobalVariablesHook(_Hook):
    """Broadcasts the root's variables to all ranks after a TF1 session is created.

    Args:
      root_rank: the rank to broadcast from.
      device: ignored, accepted for compatibility.

    Examples:
      >>> with tf.Graph().as_default():
      ...     rate = tf.compat.v1.get_variable("rate", initializer=0.1)
      ...     hook = hvd.BroadcastGlobalVariablesHook(root_rank=0)
      ...     with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
      ...         value = session.run(rate)
      >>> round(float(value), 1)
      0.1
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        del device
        self.root_rank = root_rank
        self._operation = None

    def begin(self) -> None:
        """Adds the broadcast op to the graph."""
        self._operation = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs the broadcast."""
        del coord
        session.run(self._operation)
