// PackKernels: the kernels of kernels/cuda on one GPU.
#pragma once

#include <string>

#include "kernels/cuda/pack.h"
#include "transport/cuda/cuda_device.h"

namespace smddp {

class PackKernels {
 public:
  // Those of `image` (PackImage(), or null), loaded at the first call for that GPU. They stay
  // loaded, as their device does. Null, with the reason in *why, if it cannot run them.
  static const PackKernels* Find(const CudaDevice* device, const void* image, std::string* why);

  // Enqueue one kernel in `stream`, for the range of the wire that `args` has.
  Status Pack(PackType type, const PackArgs& args, void* stream) const {
    return Launch(pack_[static_cast<int>(type)], type, args, stream);
  }
  Status Unpack(PackType type, const PackArgs& args, void* stream) const {
    return Launch(unpack_[static_cast<int>(type)], type, args, stream);
  }

 private:
  explicit PackKernels(const CudaDevice* device) : device_(device) {}
  Status Load(const void* image);
  Status Launch(void* function, PackType type, PackArgs args, void* stream) const;

  static constexpr int kTypes = 5;
  const CudaDevice* const device_;
  void* pack_[kTypes] = {};
  void* unpack_[kTypes] = {};
};

}  // namespace smddp
