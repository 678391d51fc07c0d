// Pack and unpack as kernels, by the names that transport/cuda/pack_kernels.cc looks for.
#include "kernels/cuda/pack_body.h"

namespace smddp {

// On a multiprocessor. Left to itself, the compiler spills registers to have a third one, which the
// loads that are in flight anyway do not need.
constexpr unsigned kPackBlocksAtOnce = 2;

// Of the threads of all blocks in a row, each kPackLanes are the lanes of a tile.
#define SMDDP_PACK_KERNEL(name, way, tensor, wire)                                                 \
  extern "C" __global__ void __launch_bounds__(kPackThreads, kPackBlocksAtOnce)                    \
      smddp_##name(const PackArgs args) {                                                          \
    uint64_t tile = uint64_t{blockIdx.x} * (kPackThreads / kPackLanes) + threadIdx.x / kPackLanes; \
    way<tensor, wire>(args, tile, threadIdx.x % kPackLanes);                                       \
  }
#define SMDDP_BOTH_WAYS(name, tensor, wire)          \
  SMDDP_PACK_KERNEL(pack_##name, Pack, tensor, wire) \
  SMDDP_PACK_KERNEL(unpack_##name, Unpack, tensor, wire)

SMDDP_PACK_KERNELS(SMDDP_BOTH_WAYS)

}  // namespace smddp
