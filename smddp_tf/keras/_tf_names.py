"""What Horovod has in its TensorFlow module, with that module's order of arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smddp_tf._collectives.variables import broadcast_global_variables
from smddp_tf._compression import Compression
from smddp_tf._gradients.tape import DistributedGradientTape
from smddp_tf._graph.framework import tensorflow
from smddp_tf._job.process_sets import ProcessSet, global_process_set
from smddp_tf._job.reduce_op import Average, ReduceOp
from smddp_tf._types import Compressor, GradientTape
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
    groups: int | Sequence | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    **unknown: Any,
):
    """smddp_tf.keras.DistributedOptimizer, with the arguments of Horovod's TensorFlow module.

    Args:
      optimizer: of Keras or tf.compat.v1.train.
      name: as there, like all that follow.
      use_locking: accepted for old scripts; it belongs to the tf.compat.v1 optimizer itself.
      device_dense: as there.
      device_sparse: as there.
      compression: as there.
      sparse_as_dense: as there.
      backward_passes_per_step: as there.
      op: as there.
      gradient_predivide_factor: as there.
      average_aggregated_gradients: as there.
      num_groups: as there.
      groups: as there.
      process_set: as there.
      scale_local_gradients: as there.
      **unknown: refused by name.

    Returns:
      The same object.
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
    groups: int | Sequence | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
):
    """DistributedGradientTape, but the gradients of some layers stay local.

    Args:
      gradtape: as for DistributedGradientTape, like all others.
      device_dense: as there.
      device_sparse: as there.
      compression: as there.
      sparse_as_dense: as there.
      op: as there.
      gradient_predivide_factor: as there.
      num_groups: as there.
      groups: as there.
      process_set: as there.
      local_layers: a Keras layer or a list of them, built.
      scale_local_gradients: divide their gradients by the number of ranks.

    Returns:
      A tape of the same class.
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


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Gives all ranks the root's variables after a TF1 session was made.

    Args:
      root_rank: the rank whose values all get.
      device: ignored, accepted for compatibility.
    """

    def __init__(self, root_rank: int, device: str = ""):
        super().__init__()
        del device
        self.root_rank = root_rank
        self._operation = None

    def begin(self):
        """Adds the broadcast to the graph."""
        self._operation = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any):
        """Runs it."""
        del coord
        session.run(self._operation)
