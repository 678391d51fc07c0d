// PackKernels: the kernels that pack and unpack, on one GPU.
#pragma once

#include <string>
#include <utility>  // for move
#include <vector>

#include "kernels/cuda/pack.h"
#include "transport/cuda/module.h"

namespace smddp {

class PackKernels {
 public:
  // Those of `image` (PackImage(), or null); see FindKernels().
  static const PackKernels* Find(const CudaDevice* device, const void* image, std::string* why) {
    return FindKernels<PackKernels>(device, image, why);
  }
  static std::vector<const char*> Names();
  explicit PackKernels(CudaModule module) : module_(std::move(module)) {}

  // Enqueue one kernel in `stream`, for the range of the wire that `args` has.
  Status Pack(PackType type, const PackArgs& args, void* stream) const;
  Status Unpack(PackType type, const PackArgs& args, void* stream) const;

 private:
  const CudaModule module_;
};

}  // namespace smddp
