// The reduction loops of 64-bit ARM, whose every processor has NEON: what differs from the generic
// ones is how float16 is converted.
#define SMDDP_ISA neon
#define SMDDP_NEON_HALF 1
#include "kernels/cpu/reduce_loops.h"
