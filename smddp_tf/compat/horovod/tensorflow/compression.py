"""horovod.tensorflow.compression."""

from smddp_tf._compression import Compression, NoneCompressor
from smddp_tf._compression.casts import FP16Compressor
