// The reduction loops compiled for avx512; the build sets this file's flags.
#define SMDDP_ISA avx512
#include "kernels/cpu/reduce_loops.h"
