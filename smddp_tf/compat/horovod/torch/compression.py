"""horovod.torch.compression."""

from smddp_tf.torch._compression import Compression, Compressor, FP16Compressor, NoneCompressor
