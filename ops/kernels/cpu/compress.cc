#include "kernels/cpu/compress.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/isa.h"

namespace smddp {

#define SMDDP_DECLARE(isa)                           \
  namespace isa {                                    \
  const CompressLoops& CompressLoopsOf(DType dtype); \
  }
SMDDP_FOR_EACH_ISA(SMDDP_DECLARE)
#undef SMDDP_DECLARE

const CompressLoops& FindCompressLoops(DType dtype) {
  using LoopsOf = const CompressLoops& (*)(DType dtype);
#define SMDDP_LEVEL(isa) isa::CompressLoopsOf,
  constexpr LoopsOf kLevels[] = {SMDDP_FOR_EACH_ISA(SMDDP_LEVEL)};
#undef SMDDP_LEVEL
  return kLevels[IsaIndex()](dtype);
}

void Int8Quantize(DType dtype, const void* in, size_t count, int8_t* codes, float* scales) {
  FindCompressLoops(dtype).quantize(in, count, codes, scales);
}

void Int8Sum(const int8_t* codes, const float* scales, size_t ranks, float divisor, DType dtype,
             void* out, size_t count) {
  FindCompressLoops(dtype).sum_int8(codes, scales, ranks, divisor, out, count);
}

namespace {

constexpr size_t kBlock = 4096;

// The elements that may be among the k largest of those seen so far, in order. When there are twice
// as many as needed, those that are not are dropped, and from then on only what is larger than the
// least of the others is taken: an equal one with a higher index comes behind it.
class Candidates {
 public:
  Candidates(size_t count, size_t k)
      : k_(k),
        room_(std::min(count, 2 * k) + kBlock),
        indices_(new int32_t[room_]),
        magnitudes_(new int32_t[room_]),
        scratch_(new int32_t[room_]) {}

  // Up to kBlock elements, which come behind those before.
  void Look(const CompressLoops& loops, const float* total, size_t n, size_t first_index) {
    size_ += loops.above(total, n, threshold_, static_cast<int32_t>(first_index),
                         indices_.get() + size_, magnitudes_.get() + size_);
    if (size_ + kBlock > room_) Drop();
  }

  // Leaves k of them, if there were as many.
  void Drop() {
    if (size_ <= k_) return;
    int32_t* scratch = scratch_.get();
    std::copy_n(magnitudes_.get(), size_, scratch);
    std::nth_element(scratch, scratch + (k_ - 1), scratch + size_, std::greater<int32_t>());
    threshold_ = scratch[k_ - 1];
    auto larger = [this](int32_t magnitude) { return magnitude > threshold_; };
    auto equal = k_ - static_cast<size_t>(std::count_if(scratch, scratch + k_, larger));
    size_t left = 0;
    for (size_t i = 0; i < size_; ++i) {
      if (magnitudes_[i] < threshold_) continue;
      if (magnitudes_[i] == threshold_) {
        if (equal == 0) continue;
        --equal;
      }
      indices_[left] = indices_[i];
      magnitudes_[left++] = magnitudes_[i];
    }
    size_ = left;
  }

  const int32_t* indices() const { return indices_.get(); }

 private:
  const size_t k_, room_;
  const std::unique_ptr<int32_t[]> indices_, magnitudes_, scratch_;
  size_t size_ = 0;
  int32_t threshold_ = -1;
};

}  // namespace

void TopkSelect(DType dtype, const void* in, const float* kept, size_t count, size_t k,
                int32_t* indices, float* values, float* residual) {
  const CompressLoops& loops = FindCompressLoops(dtype);
  Candidates candidates(count, k);
  for (size_t at = 0; at < count; at += kBlock) {
    size_t n = std::min(kBlock, count - at);
    loops.add(static_cast<const char*>(in) + at * Info(dtype).size, kept + at, residual + at, n);
    candidates.Look(loops, residual + at, n, at);
  }
  candidates.Drop();
  for (size_t i = 0; i < k; ++i) {
    indices[i] = candidates.indices()[i];
    values[i] = residual[indices[i]];
    residual[indices[i]] = 0;
  }
}

Status TopkSum(const int32_t* indices, const float* values, size_t ranks, size_t k, float divisor,
               DType dtype, void* out, size_t count) {
  bool direct = dtype == DType::kFloat32;
  std::unique_ptr<float[]> space(direct ? nullptr : new float[count]);
  float* sums = direct ? static_cast<float*>(out) : space.get();
  std::fill_n(sums, count, 0.0f);
  for (size_t i = 0; i < ranks * k; ++i) {
    // A negative one is beyond the end too.
    size_t index = static_cast<uint32_t>(indices[i]);
    if (index >= count) {
      return {Code::kUsage, "Compression.topk: rank " + std::to_string(i / k) +
                                " of the process set sent index " + std::to_string(indices[i]) +
                                " of a gradient that has " + std::to_string(count) +
                                " elements here; give tensors of one shape on all ranks"};
    }
    sums[index] += values[i];
  }
  if (!direct || divisor != 1.0f) FindCompressLoops(dtype).finish(sums, divisor, out, count);
  return {};
}

}  // namespace smddp
