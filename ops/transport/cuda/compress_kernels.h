// CompressKernels: the kernels of compressors, on one GPU.
#pragma once

#include <cstdint>
#include <string>
#include <utility>  // for move
#include <vector>

#include "core/dtype.h"
#include "kernels/cuda/compress.h"
#include "transport/cuda/module.h"

namespace smddp {

class CompressKernels {
 public:
  // Those of `image` (CompressImage(), or null); see FindKernels().
  static const CompressKernels* Find(const CudaDevice* device, const void* image,
                                     std::string* why) {
    return FindKernels<CompressKernels>(device, image, why);
  }
  static std::vector<const char*> Names();
  explicit CompressKernels(CudaModule module) : module_(std::move(module)) {}

  // Enqueue what kernels/cpu/compress.h has under the same names in `stream`.
  Status Int8Quantize(DType dtype, Int8QuantizeArgs args, void* stream) const;
  Status Int8Sum(DType dtype, Int8SumArgs args, void* stream) const;
  // scratch: TopkSelectScratch() bytes, aligned as the arrays. The shift, the bits, the state and
  // the tiles are set here.
  Status TopkSelect(DType dtype, TopkSelectArgs args, void* scratch, void* stream) const;
  // scratch: TopkSumScratch() bytes. Of `ranks` ranks' indices and values, one behind the other. An
  // index that is out of range makes all of the result NaN. Of args, sums and misplaced are set
  // here.
  Status TopkSum(DType dtype, TopkSumArgs args, uint32_t ranks, void* scratch, void* stream) const;
  static uint64_t TopkSelectScratch(uint32_t count);
  static uint64_t TopkSumScratch(DType dtype, uint32_t count);

  // How often this process has enqueued one of them.
  static uint64_t Calls();

 private:
  const CudaModule module_;
};

}  // namespace smddp
