// The loops of the compressors for 64-bit ARM, as reduce_neon.cc has those that reduce.
#define SMDDP_ISA neon
#define SMDDP_NEON_HALF 1
#include "kernels/cpu/compress_loops.h"
