#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels.h"
#include "kernels/cuda/pack_body.h"
#include "memory.h"

namespace {

using smddp::Byte, smddp::Half, smddp::Bfloat16, smddp::PackArgs, smddp::PackEntry;

template <void (*kLane)(const PackArgs& args, uint64_t tile, uint32_t lane)>
void Run(const FakeArgs& bytes, unsigned blocks) {
  PackArgs args;
  std::memcpy(&args, bytes.bytes, sizeof args);
  std::vector<PackEntry> entries(args.num_entries);
  if (!entries.empty()) {
    std::memcpy(entries.data(), FakeBytes(args.entries), entries.size() * sizeof(PackEntry));
  }
  for (PackEntry& entry : entries) {
    entry.in = FakeBytes(entry.in);
    entry.out = FakeBytes(entry.out);
  }
  args.entries = entries.data();
  args.wire = FakeBytes(args.wire);
  uint64_t tiles = uint64_t{blocks} * (smddp::kPackThreads / smddp::kPackLanes);
  for (uint64_t tile = 0; tile < tiles; ++tile) {
    for (uint32_t lane = 0; lane < smddp::kPackLanes; ++lane) kLane(args, tile, lane);
  }
}

}  // namespace

const std::vector<FakeKernel>& FakePackKernels() {
  static const auto& kernels = *new std::vector<FakeKernel>{
#define FAKE_KERNELS(name, tensor, wire)                                                        \
  {"smddp_pack_" #name, sizeof(PackArgs), smddp::kPackThreads, Run<smddp::Pack<tensor, wire>>}, \
      {"smddp_unpack_" #name, sizeof(PackArgs), smddp::kPackThreads,                            \
       Run<smddp::Unpack<tensor, wire>>},
      SMDDP_PACK_KERNELS(FAKE_KERNELS)
#undef FAKE_KERNELS
  };
  return kernels;
}
