// The loops of the compressors compiled for generic; the build sets this file's flags.
#define SMDDP_ISA generic
#include "kernels/cpu/compress_loops.h"
