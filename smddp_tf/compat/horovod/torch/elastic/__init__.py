"""horovod.torch.elastic: smddp_tf.torch.elastic under its name."""

from smddp_tf.compat.horovod.torch.elastic import sampler, state
from smddp_tf.torch.elastic import *  # noqa: F403
from smddp_tf.torch.elastic import __all__  # noqa: F401
