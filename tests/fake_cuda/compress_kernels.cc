#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels.h"
#include "kernels/cuda/int8_body.h"
#include "kernels/cuda/topk_select_body.h"
#include "kernels/cuda/topk_sum_body.h"
#include "memory.h"

namespace smddp {
namespace {

template <typename T>
void Find(T** address) {
  *address = reinterpret_cast<T*>(FakeBytes(*address));
}

void FindAll(Int8QuantizeArgs* args) {
  Find(&args->in);
  Find(&args->codes);
  Find(&args->scales);
}

void FindAll(Int8SumArgs* args) {
  Find(&args->codes);
  Find(&args->scales);
  Find(&args->out);
}

void FindAll(TopkSelectArgs* args) {
  Find(&args->in);
  Find(&args->kept);
  Find(&args->total);
  Find(&args->indices);
  Find(&args->values);
  Find(&args->state);
  Find(&args->tiles);
}

void FindAll(TopkSumArgs* args) {
  Find(&args->indices);
  Find(&args->values);
  Find(&args->sums);
  Find(&args->out);
  Find(&args->misplaced);
}

template <typename Args>
Args Found(const FakeArgs& bytes) {
  static_assert(sizeof(Args) <= sizeof bytes.bytes);
  Args args;
  std::memcpy(&args, bytes.bytes, sizeof args);
  FindAll(&args);
  return args;
}

template <typename Args, void (*kWarp)(const Args& args, uint64_t warp)>
void RunWarps(const FakeArgs& bytes, unsigned blocks) {
  auto args = Found<Args>(bytes);
  threads_backwards = !threads_backwards;
  for (uint64_t warp = 0; warp < uint64_t{blocks} * kWarps; ++warp) kWarp(args, warp);
}

template <typename Args, void (*kBlock)(const Args& args, unsigned, unsigned, void* shared)>
void RunBlocks(const FakeArgs& bytes, unsigned blocks) {
  auto args = Found<Args>(bytes);
  threads_backwards = !threads_backwards;
  for (unsigned block = 0; block < blocks; ++block) {
    alignas(8) char shared[kSharedBytes];
    std::memset(shared, 0x99, sizeof shared);  // nothing is there before
    kBlock(args, block, blocks, shared);
  }
}

}  // namespace
}  // namespace smddp

const std::vector<FakeKernel>& FakeCompressKernels() {
  using namespace smddp;
  static const auto& kernels = *new std::vector<FakeKernel>{
#define FAKE_WARPS(name, body, Args) {"smddp_" #name, sizeof(Args), kThreads, RunWarps<Args, body>},
#define FAKE_BLOCKS(name, body, Args) \
  {"smddp_" #name, sizeof(Args), kThreads, RunBlocks<Args, body>},
      SMDDP_COMPRESS_KERNELS(FAKE_WARPS, FAKE_BLOCKS)
#undef FAKE_BLOCKS
#undef FAKE_WARPS
  };
  return kernels;
}
