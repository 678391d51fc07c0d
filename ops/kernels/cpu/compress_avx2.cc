// The loops of the compressors compiled for avx2; the build sets this file's flags.
#define SMDDP_ISA avx2
#include "kernels/cpu/compress_loops.h"
