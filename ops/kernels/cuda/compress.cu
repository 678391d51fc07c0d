// The kernels of compressors, by the names that transport/cuda/compress_kernels.cc looks for.
#include "kernels/cuda/int8_body.h"
#include "kernels/cuda/topk_select_body.h"
#include "kernels/cuda/topk_sum_body.h"

namespace smddp {

#define SMDDP_KERNEL(name, Args) \
  extern "C" __global__ void __launch_bounds__(kThreads) smddp_##name(const Args args)

// Of the threads of all blocks in a row, each kLanes are a warp.
#define SMDDP_WARPS(name, body, Args) \
  SMDDP_KERNEL(name, Args) { body(args, uint64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes); }

#define SMDDP_BLOCKS(name, body, Args)               \
  SMDDP_KERNEL(name, Args) {                         \
    __shared__ alignas(8) char shared[kSharedBytes]; \
    body(args, blockIdx.x, gridDim.x, shared);       \
  }

SMDDP_COMPRESS_KERNELS(SMDDP_WARPS, SMDDP_BLOCKS)

}  // namespace smddp
