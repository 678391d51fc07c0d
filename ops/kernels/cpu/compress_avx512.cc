// The loops of the compressors compiled for avx512; the build sets this file's flags.
#define SMDDP_ISA avx512
#include "kernels/cpu/compress_loops.h"
