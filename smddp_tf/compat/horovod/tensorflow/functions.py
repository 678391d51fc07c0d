"""horovod.tensorflow.functions: variables and objects."""

from smddp_tf import (  # noqa: F401
    allgather_object,
    broadcast_,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
