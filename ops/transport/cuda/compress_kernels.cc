#include "transport/cuda/compress_kernels.h"

#include <algorithm>
#include <atomic>
#include <cstddef>

#include "kernels/cuda/lanes.h"
#include "kernels/int8.h"

namespace smddp {
namespace {

std::atomic<uint64_t> calls{0};

enum Kernel : size_t {
#define SMDDP_NUMBER(name, body, Args) k_##name,
  SMDDP_COMPRESS_KERNELS(SMDDP_NUMBER, SMDDP_NUMBER)
#undef SMDDP_NUMBER
};

// Each dtype has the kernels that float32 has, in the order of SMDDP_COMPRESS_KERNELS.
size_t OfDtype(Kernel float32, DType dtype) {
  constexpr size_t kOfEach = k_int8_quantize_float64 - k_int8_quantize_float32;
  static_assert(k_int8_quantize_bfloat16 - k_int8_quantize_float16 == kOfEach);
  size_t number = dtype == DType::kFloat32   ? 0
                  : dtype == DType::kFloat64 ? 1
                  : dtype == DType::kFloat16 ? 2
                                             : 3;
  return float32 + number * kOfEach;
}

// What one of so many blocks has its share of; enough to be busy with on every GPU so far. More
// would only have more counts of bins to add up.
constexpr unsigned kMostCountingBlocks = 1024;
constexpr uint64_t kScratchHead = 16;  // in which `misplaced` is

unsigned Blocks(uint64_t parts, uint64_t parts_of_block) {
  return static_cast<unsigned>((parts + parts_of_block - 1) / parts_of_block);
}

Status Counted(Status status) {
  if (status.ok()) ++calls;
  return status;
}

// Launches one kernel after the other, until one fails.
class Sequence {
 public:
  Sequence(const CudaModule& module, void* stream) : module_(module), stream_(stream) {}
  template <typename Args>
  void Launch(size_t kernel, unsigned blocks, Args args) {
    if (status_.ok()) status_ = module_.Launch(kernel, blocks, kThreads, &args, stream_);
  }
  const Status& status() const { return status_; }

 private:
  const CudaModule& module_;
  void* const stream_;
  Status status_;
};

}  // namespace

std::vector<const char*> CompressKernels::Names() {
  return {
#define SMDDP_NAME(name, body, Args) "smddp_" #name,
      SMDDP_COMPRESS_KERNELS(SMDDP_NAME, SMDDP_NAME)
#undef SMDDP_NAME
  };
}

uint64_t CompressKernels::Calls() { return calls; }

Status CompressKernels::Int8Quantize(DType dtype, Int8QuantizeArgs args, void* stream) const {
  unsigned blocks = Blocks(Int8Chunks(args.count), kWarps);
  size_t kernel = OfDtype(k_int8_quantize_float32, dtype);
  return Counted(module_.Launch(kernel, blocks, kThreads, &args, stream));
}

Status CompressKernels::Int8Sum(DType dtype, Int8SumArgs args, void* stream) const {
  unsigned blocks = Blocks(Int8Chunks(args.count), kWarps);
  size_t kernel = OfDtype(k_int8_sum_float32, dtype);
  return Counted(module_.Launch(kernel, blocks, kThreads, &args, stream));
}

uint64_t CompressKernels::TopkSelectScratch(uint32_t count) {
  return sizeof(TopkState) + TopkTiles(count) * sizeof(uint64_t);
}

Status CompressKernels::TopkSelect(DType dtype, TopkSelectArgs args, void* scratch,
                                   void* stream) const {
  static_assert(sizeof(TopkState) % sizeof(uint64_t) == 0);
  args.state = static_cast<TopkState*>(scratch);
  args.tiles = reinterpret_cast<uint64_t*>(args.state + 1);
  uint64_t fours = (uint64_t{args.count} + 3) / 4;
  unsigned counting = std::min(Blocks(fours, kThreads), kMostCountingBlocks);
  unsigned by_tile = Blocks(TopkTiles(args.count), kWarps);
  Sequence sequence(module_, stream);

  sequence.Launch(k_topk_begin, 1, args);
  const struct {
    uint32_t shift, bits;
  } passes[] = {{20, 11}, {9, 11}, {0, 9}};  // of the 31 bits of a magnitude
  for (const auto& pass : passes) {
    args.shift = pass.shift;
    args.bits = pass.bits;
    bool first = &pass == &passes[0];
    sequence.Launch(first ? OfDtype(k_topk_add_float32, dtype) : k_topk_bins, counting, args);
    sequence.Launch(k_topk_narrow, 1, args);
  }
  sequence.Launch(k_topk_count, by_tile, args);
  sequence.Launch(k_topk_scan, 1, args);
  sequence.Launch(k_topk_take, by_tile, args);
  return Counted(sequence.status());
}

uint64_t CompressKernels::TopkSumScratch(DType dtype, uint32_t count) {
  return kScratchHead + (dtype == DType::kFloat32 ? 0 : uint64_t{count} * sizeof(float));
}

Status CompressKernels::TopkSum(DType dtype, TopkSumArgs args, uint32_t ranks, void* scratch,
                                void* stream) const {
  auto* head = static_cast<char*>(scratch);
  args.misplaced = reinterpret_cast<uint32_t*>(head);
  void* sums = dtype == DType::kFloat32 ? args.out : head + kScratchHead;
  args.sums = static_cast<float*>(sums);
  unsigned by_four = Blocks((uint64_t{args.count} + 3) / 4, kThreads);
  Sequence sequence(module_, stream);

  sequence.Launch(k_topk_clear, by_four, args);
  for (uint32_t r = 0; r < ranks; ++r) {
    sequence.Launch(k_topk_scatter, Blocks(args.k, kThreads), args);
    args.indices += args.k;
    args.values += args.k;
  }
  sequence.Launch(OfDtype(k_topk_finish_float32, dtype), by_four, args);
  return Counted(sequence.status());
}

}  // namespace smddp
