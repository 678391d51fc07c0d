"""horovod.torch.functions."""

from smddp_tf.torch import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
