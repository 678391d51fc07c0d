// The reduction loops compiled for avx2; the build sets this file's flags.
#define SMDDP_ISA avx2
#include "kernels/cpu/reduce_loops.h"
