"""horovod.tensorflow.compression."""

from smddp_tf._compression import (  # noqa: F401
    Compression,
    FP16Compressor,
    NoneCompressor,
)
