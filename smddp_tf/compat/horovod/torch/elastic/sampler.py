"""horovod.torch.elastic.sampler."""

from smddp_tf.torch.elastic import ElasticSampler
