// The reduction loops compiled for generic; the build sets this file's flags.
#define SMDDP_ISA generic
#include "kernels/cpu/reduce_loops.h"
