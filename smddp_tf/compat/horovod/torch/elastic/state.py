"""horovod.torch.elastic.state."""

from smddp_tf.torch.elastic import ObjectState, TorchState
